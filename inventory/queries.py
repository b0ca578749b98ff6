"""Queries of the stock and its ledger; this module never writes."""

from dataclasses import dataclass

from django.db.models import BigIntegerField, Q, Sum
from django.db.models.functions import Cast

from inventory.models import Stock, StockMovement

IS_STOCKED = Q(reason=StockMovement.Reason.STOCKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The quantity of a stock row and the sums of its movements, in units."""

    stocked: int
    """All units ever added, less those that staff have removed."""
    available: int
    """The quantity on the row."""
    per_order: dict[str, int]
    """Units reserved and not returned, by order number."""
    stale_writes_refused: int


def ledger_of(*, stock_id: int) -> Ledger:
    """Return the sums of a stock row's movements."""
    row = Stock.objects.get(pk=stock_id)
    movements = StockMovement.objects.filter(stock=row)
    per_order = (
        movements.exclude(IS_STOCKED)
        .values_list("order_number")
        # MySQL adds up integers to a decimal, which Python compares slowly.
        .annotate(out=Cast(-Sum("delta"), BigIntegerField()))
        .exclude(out=0)
        .order_by()
    )
    return Ledger(
        stocked=stocked(stock_id=stock_id),
        available=row.quantity,
        per_order=dict(per_order),
        stale_writes_refused=row.stale_writes_refused,
    )


def stocked(*, stock_id: int) -> int:
    """Return the units ever added to a stock row, less those that staff have removed."""
    # Without an order's number, the index finds the few rows.
    movements = StockMovement.objects.filter(IS_STOCKED, stock_id=stock_id, order_number=None)
    return int(movements.aggregate(sum=Sum("delta", default=0))["sum"])
