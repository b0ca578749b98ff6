"""The report of a sale: what became of its units, and how fast they were sold."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from typing import NamedTuple

from django.db.models import Count, F, Max, Min, Q, Sum
from django.template.defaultfilters import floatformat
from django.utils import timezone
from django.utils.translation import gettext as _

from inventory.models import StockMovement
from inventory.money import default_currency
from inventory.queries import IS_STOCKED, stocked
from shop.errors import ServiceUnavailable
from shop.models import Order, Payment, RejectedReservation, Sale
from shop.reservations import store

WIDTH, HEIGHT = 600, 180
"""The units of the curve's view box."""
STEPS = 600
"""The most steps of a curve."""
Curve = list[tuple[float, int]]
"""Units taken and not returned, by seconds since the opening."""


class _Step(NamedTuple):
    """The movements of a stock row from one number to another; other rows have some of them."""

    first: int
    end: int
    change: int
    least: int
    """The sum of all that take units away: the stock did not fall by more than that."""
    taken: int
    """Units taken and not returned."""
    last: int | None
    """The last movement that is one of an order."""


class Outcome(NamedTuple):
    """Orders of one status, or payments that were returned, in one currency."""

    label: str
    orders: int
    amount: Decimal
    currency: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaleReport:
    """A sale as of now."""

    offered: int
    """All units ever added, less those that staff have removed."""
    outcomes: list[Outcome]
    refused: list[tuple[str, int]]
    """Reservations that did not become orders, by reason."""
    waiting: int | None
    """Units of a queued sale whose order is not written yet; None if unknown, or not queued."""
    sold_out_after: float | None
    """Seconds from the opening until the last unit was taken for the first time."""
    top: int
    """Units at the top of the curve."""
    points: str
    """The points of the curve, empty before the first order."""
    ticks: list[str]
    """The beginning, the middle and the end of the curve, as time since the opening."""

    @property
    def sold_out(self) -> str:
        """Return the time to sold out as text; empty if it never was."""
        return "" if self.sold_out_after is None else duration(self.sold_out_after)


def report_of(*, sale: Sale) -> SaleReport:
    """Return the report of a sale."""
    offered = stocked(stock_id=sale.stock_id)
    ids = StockMovement.objects.filter(stock=sale.stock_id).aggregate(Min("pk"), Max("pk"))
    steps = _steps(sale, ids["pk__min"] or 0, ids["pk__max"] or 0)
    sold_out, sold_out_after = _sold_out(sale, steps), None
    if sold_out is not None:
        steps = _steps(sale, ids["pk__min"], sold_out)
        sold_out_after = _seconds(sale, [sold_out])[sold_out]
    elapsed = (min(timezone.now(), sale.closes_at) - sale.opens_at).total_seconds()
    end = max(1.0, elapsed if sold_out_after is None else sold_out_after)
    curve = _curve(sale, steps)
    top = max([offered, *(units for _, units in curve)])
    return SaleReport(
        offered=offered,
        outcomes=[*_orders(sale), *_refunds(sale)],
        refused=_refused(sale),
        waiting=_waiting(sale),
        sold_out_after=sold_out_after,
        top=top,
        points=_points(curve, end=end, top=top),
        ticks=[duration(end * part) for part in (0, 0.5, 1)],
    )


def duration(seconds: float) -> str:
    """Return a time in its largest suitable unit, with one decimal at most."""
    for size, text in ((3600, _("%s h")), (60, _("%s min"))):
        if seconds >= 2 * size:
            return text % floatformat(seconds / size, -1)
    return _("%s s") % floatformat(seconds, -1)


def _orders(sale: Sale) -> Iterator[Outcome]:
    orders = Order.objects.filter(sale=sale)
    codes = orders.values_list("currency", flat=True)
    first, last = (codes.order_by(end).first() or default_currency() for end in ("pk", "-pk"))
    # Without a change of CURRENCY, an index alone has what is asked for.
    by = ["status"] if first == last else ["status", "currency"]
    rows = list(orders.order_by(*by).values_list(*by).annotate(Count("pk"), Sum("quantity")))
    for status in Order.Status:
        for found, *currency, count, units in rows:
            if found == status:
                # The price of a sale is fixed before its first order.
                amount = units * sale.price
                yield Outcome(str(status.label), count, amount, *(currency or [first]))


def _refunds(sale: Sale) -> Iterator[Outcome]:
    refunded = Payment.objects.filter(order__sale=sale, status=Payment.Status.REFUNDED)
    rows = refunded.order_by("currency").values_list("currency")
    for currency, count, amount in rows.annotate(Count("pk"), Sum("amount")):
        yield Outcome(_("Payments refunded"), count, amount, currency)


def _refused(sale: Sale) -> list[tuple[str, int]]:
    rows = RejectedReservation.objects.filter(sale=sale).order_by("reason").values_list("reason")
    labels = dict(RejectedReservation.Reason.choices)
    return [(str(labels[reason]), count) for reason, count in rows.annotate(Count("pk"))]


def _waiting(sale: Sale) -> int | None:
    if sale.is_queued:
        with suppress(ServiceUnavailable):
            state = store.read_state(sale=sale)
            return state.queued if state else 0
    return None


def _steps(sale: Sale, first: int, end: int) -> list[_Step]:
    """Return the steps from one movement to another.

    The clocks of processes differ, but movements are numbered in the order of their writes. An
    index holds all that is asked for here: reading the rows would take three times as long.
    """
    length = (end - first) // STEPS + 1
    rows = (
        StockMovement.objects.filter(stock=sale.stock_id, pk__range=(first, end))
        .annotate(step=F("id") - F("id") % length)
        .values_list("step")
        .annotate(
            change=Sum("delta"),
            least=Sum("delta", filter=Q(delta__lt=0), default=0),
            taken=-Sum("delta", filter=~IS_STOCKED, default=0),
            last=Max("pk", filter=~IS_STOCKED),
        )
        .order_by("step")
    )
    return [_Step(max(first, at), min(end, at + length - 1), *sums) for at, *sums in rows]


def _sold_out(sale: Sale, steps: list[_Step], left: int = 0) -> int | None:
    """Return the movement that first left no unit, given the units left before the steps."""
    for step in steps:
        if step.least and left + step.least <= 0:
            if step.first == step.end:
                found = step.last  # None if staff removed the units
            else:
                found = _sold_out(sale, _steps(sale, step.first, step.end), left)
            if found is not None:
                return found
        left += step.change
    return None


def _seconds(sale: Sale, movements: list[int]) -> dict[int, float]:
    """Return the seconds from the opening until each movement."""
    rows = StockMovement.objects.filter(pk__in=movements).values_list("pk", "created_at")
    return {pk: max(0.0, (at - sale.opens_at).total_seconds()) for pk, at in rows}


def _curve(sale: Sale, steps: list[_Step]) -> Curve:
    """Return the units taken after each step."""
    at = _seconds(sale, [step.last for step in steps if step.last])
    totals = accumulate(step.taken for step in steps)
    return [(at[one.last], total) for one, total in zip(steps, totals, strict=True) if one.last]


def _points(curve: Curve, *, end: float, top: int) -> str:
    """Return the points of a polyline with a step at most for each unit of its width."""
    last: dict[int, int] = {}
    for seconds, units in curve:
        last[round(WIDTH * min(1, seconds / end))] = units
    height, points = float(HEIGHT), [f"0,{HEIGHT}"]
    for x, units in sorted(last.items()):
        points.append(f"{x},{height:.1f}")
        height = HEIGHT * (1 - units / (top or 1))
        points.append(f"{x},{height:.1f}")
    return " ".join([*points, f"{WIDTH},{height:.1f}"]) if last else ""
