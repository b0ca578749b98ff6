"""The report of a sale: what became of its units, and how fast they were sold."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from django.db.models import Count, Min, Sum
from django.template.defaultfilters import floatformat
from django.utils import timezone
from django.utils.translation import gettext as _

from inventory.models import StockMovement
from inventory.queries import stocked
from shop.administration.audit import units_in_redis
from shop.models import Order, Payment, RejectedReservation, Sale

WIDTH, HEIGHT = 600, 180
"""The units of the curve's view box."""
STEPS = 600
"""The most steps of a curve."""
CHUNK = 10_000
"""Movements that one statement reads."""
Step = tuple[int, int]
"""Number of a movement, and the units that are taken since."""


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
    curve, is_sold_out = _curve(sale)
    sold_out_after = curve[-1][0] if is_sold_out else None
    elapsed = (min(timezone.now(), sale.closes_at) - sale.opens_at).total_seconds()
    end = max(1.0, elapsed if sold_out_after is None else sold_out_after)
    orders = list(_orders(sale))
    top = max([offered, *(units for _, units in curve)])
    return SaleReport(
        offered=offered,
        outcomes=[*orders, *_refunds(sale, orders)],
        refused=_refused(sale),
        waiting=units_in_redis(sale=sale, available=0).get("reserved"),
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
    by = ("status", "currency")
    orders = Order.objects.filter(sale=sale).order_by(*by).values_list(*by)
    rows = list(orders.annotate(Count("pk"), Sum("quantity")))
    for status in Order.Status:
        for found, currency, count, units in rows:
            if found == status:
                # The price of a sale is fixed before its first order.
                yield Outcome(str(status.label), count, units * sale.price, currency)


def _refunds(sale: Sale, orders: list[Outcome]) -> Iterator[Outcome]:
    """Yield the refunded payments unless they are those of the refunded orders."""
    refunded = Payment.objects.filter(order__sale=sale, status=Payment.Status.REFUNDED)
    rows = refunded.order_by("currency").values_list("currency")
    for currency, count, amount in rows.annotate(Count("pk"), Sum("amount")):
        if (str(Order.Status.REFUNDED.label), count, amount, currency) not in orders:
            yield Outcome(_("Payments refunded"), count, amount, currency)


def _refused(sale: Sale) -> list[tuple[str, int]]:
    rows = RejectedReservation.objects.filter(sale=sale).order_by("reason").values_list("reason")
    labels = dict(RejectedReservation.Reason.choices)
    return [(str(labels[reason]), count) for reason, count in rows.annotate(Count("pk"))]


def _curve(sale: Sale) -> tuple[list[tuple[float, int]], bool]:
    """Return the units taken and not returned, by seconds since the opening.

    It ends when an order first took the last unit; the second value is True then. The clocks of
    processes differ, but movements are numbered in the order of their writes.
    """
    movements = StockMovement.objects.filter(stock=sale.stock_id).order_by("pk")
    rows = movements.values_list("pk", "delta", "order_number")
    # A sale begins with its stock, which an index finds.
    first = movements.filter(order_number=None).aggregate(pk=Min("pk"))["pk"] or 0
    left, units, taken, is_sold_out, last = 0, 0, list[Step](), False, first - 1
    while not is_sold_out and (chunk := list(rows.filter(pk__gt=last)[:CHUNK])):
        last, in_chunk = chunk[-1][0], []
        for pk, delta, order in chunk:
            left += delta
            if order:
                units -= delta
                in_chunk.append((pk, units))
                if is_sold_out := delta < 0 and left <= 0:
                    break
        taken += _thinned(in_chunk)
    steps = _thinned(taken)
    shown = StockMovement.objects.filter(pk__in=[pk for pk, _ in steps])
    at = dict(shown.values_list("pk", "created_at"))
    curve = [(max(0.0, (at[pk] - sale.opens_at).total_seconds()), units) for pk, units in steps]
    return curve, is_sold_out


def _thinned(steps: list[Step]) -> list[Step]:
    """Return at most STEPS of the steps, and always the last one."""
    return steps[:: -(len(steps) // STEPS + 1)][::-1]


def _points(curve: list[tuple[float, int]], *, end: float, top: int) -> str:
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
