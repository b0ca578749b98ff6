"""The report of a sale: what became of its units, and how fast they were sold."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import inf
from typing import NamedTuple

from django.db.models import Count, Max, Min, QuerySet, Sum, Window
from django.db.models.functions import Trunc
from django.template.defaultfilters import floatformat
from django.utils import timezone
from django.utils.translation import gettext as _

from inventory.models import StockMovement
from inventory.queries import IS_STOCKED, stocked
from shop.errors import ServiceUnavailable
from shop.models import Order, Payment, RejectedReservation, Sale
from shop.reservations import store

WIDTH, HEIGHT = 600, 180
"""The units of the curve's view box."""
STEPS = {"second": 1, "minute": 60, "hour": inf}
"""The steps that a curve may have, in seconds; the finest with STEPS_SHOWN at most is drawn."""
STEPS_SHOWN = 3600
Curve = list[tuple[float, int]]
"""Units taken and not returned, by seconds since the opening."""


class Outcome(NamedTuple):
    """Orders of one status, or payments that were returned."""

    label: str
    orders: int
    amount: Decimal


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
    sold_out_after = _sold_out_after(sale)
    end = _end_of(sale, sold_out_after)
    curve = curve_of(sale=sale, end=end)
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
    rows = Order.objects.filter(sale=sale).order_by("status").values_list("status")
    found = {status: of for status, *of in rows.annotate(Count("pk"), Sum("quantity"))}
    for status in Order.Status:
        if status in found:
            orders, units = found[status]
            # From an index alone. The price of a sale is fixed before its first order.
            yield Outcome(str(status.label), orders, units * sale.price)


def _refunds(sale: Sale) -> Iterator[Outcome]:
    refunded = Payment.objects.filter(order__sale=sale, status=Payment.Status.REFUNDED)
    if count := refunded.count():
        amount = refunded.aggregate(sum=Sum("amount"))["sum"]
        yield Outcome(_("Payments refunded"), count, amount)


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


def _sold_out_after(sale: Sale) -> float | None:
    """Return the seconds from the opening until none was left for the first time."""
    left = Window(Sum("delta"), order_by="pk")
    none_left = _movements(sale).annotate(left=left).filter(left__lte=0)
    at = none_left.aggregate(at=Min("created_at", filter=~IS_STOCKED))["at"]
    return max(0.0, (at - sale.opens_at).total_seconds()) if at else None


def _end_of(sale: Sale, sold_out_after: float | None) -> float:
    """Return the seconds that the curve shows: until sold out, or else until now or the end."""
    if sold_out_after is not None:
        return max(1.0, sold_out_after * 1.1)
    until: datetime = min(timezone.now(), sale.closes_at)
    return max(1.0, (until - sale.opens_at).total_seconds())


def curve_of(*, sale: Sale, end: float) -> Curve:
    """Return the units taken in the first `end` seconds, in steps that number a few thousand."""
    step = next(name for name, size in STEPS.items() if end <= STEPS_SHOWN * size)
    steps = (
        _movements(sale)
        .filter(created_at__lte=sale.opens_at + timedelta(seconds=end))
        .annotate(step=Trunc("created_at", step, tzinfo=UTC))
        .values_list("step")
        .annotate(
            at=Max("created_at", filter=~IS_STOCKED),
            taken=Sum("delta", filter=~IS_STOCKED),
            first=Min("pk"),
        )
        .order_by("first")  # the clocks of processes differ
    )
    curve, total = Curve(), 0
    for _step, at, taken, _first in steps:
        if at:
            total -= taken
            curve.append((max(0.0, (at - sale.opens_at).total_seconds()), total))
    return curve


def _movements(sale: Sale) -> QuerySet[StockMovement]:
    return StockMovement.objects.filter(stock=sale.stock_id).order_by()


def _points(curve: Curve, *, end: float, top: int) -> str:
    """Return the points of a polyline with a step at most for each unit of its width."""
    last: dict[int, int] = {}
    for seconds, units in curve:
        last[round(WIDTH * seconds / end)] = units
    height, points = float(HEIGHT), [f"0,{HEIGHT}"]
    for x, units in sorted(last.items()):
        points.append(f"{x},{height:.1f}")
        height = HEIGHT * (1 - units / (top or 1))
        points.append(f"{x},{height:.1f}")
    return " ".join([*points, f"{WIDTH},{height:.1f}"]) if last else ""
