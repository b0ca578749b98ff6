"""Questions about stock; nothing here writes."""

from dataclasses import dataclass

from django.db.models import Q, Sum

from inventory.models import Stock, StockMovement


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A stock row beside what its movements add up to."""

    stocked: int
    """Pieces ever set aside."""
    out: int
    """Pieces out with orders: reserved and not returned."""
    available: int
    """What the row says."""
    per_order: dict[str, int]
    """Pieces out, by order number; orders with none out are left out."""
    stale_writes_refused: int


def ledger_of(*, stock_id: int) -> Ledger:
    """Add up the movements of one stock row."""
    stock = Stock.objects.get(pk=stock_id)
    movements = StockMovement.objects.filter(stock_id=stock_id)
    is_stocked = Q(reason=StockMovement.Reason.STOCKED)
    sums = movements.aggregate(
        stocked=Sum("delta", filter=is_stocked, default=0),
        moved=Sum("delta", filter=~is_stocked, default=0),
    )
    per_order = (
        movements.exclude(is_stocked)
        .values_list("order_number")
        .annotate(out=-Sum("delta"))
        .exclude(out=0)
        .order_by()
    )
    return Ledger(
        stocked=sums["stocked"],
        out=-sums["moved"],
        available=stock.quantity,
        per_order={str(number): out for number, out in per_order},
        stale_writes_refused=stock.stale_writes_refused,
    )


def stocked(*, stock_id: int) -> int:
    """Pieces ever set aside for a sale."""
    movements = StockMovement.objects.filter(stock_id=stock_id, reason=StockMovement.Reason.STOCKED)
    return int(movements.aggregate(sum=Sum("delta", default=0))["sum"])
