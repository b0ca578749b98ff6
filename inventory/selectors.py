"""Questions about stock; nothing here writes."""

from dataclasses import dataclass

from django.db.models import Q, Sum

from inventory.models import Stock, StockMovement


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The stock rows of a sale beside what their movements add up to."""

    stocked: int
    """Pieces ever set aside."""
    out: int
    """Pieces out with orders: reserved and not returned."""
    available: int
    """What the rows say."""
    differing: list[tuple[int, int]]
    """Of each row that differs: what its movements leave, and what it says."""
    per_order: dict[str, int]
    """Pieces out, by order number; orders with none out are left out."""
    stale_writes_refused: int


def rows_of(*, stock_id: int) -> list[Stock]:
    """All segments of a sale's stock as they are at one moment, the first and its id first."""
    is_one = Q(pk=stock_id) | Q(segment_of=stock_id)
    return list(Stock.objects.filter(is_one).order_by("pk"))


def taken_by(*, order_number: str) -> list[tuple[int, int]]:
    """The id of each row that an order has pieces of, and how many; lowest id first."""
    taken = StockMovement.objects.filter(
        order_number=order_number, reason=StockMovement.Reason.RESERVED
    )
    return [(row, -delta) for row, delta in taken.order_by("stock").values_list("stock", "delta")]


def ledger_of(*, stock_id: int) -> Ledger:
    """Add up the movements of a sale whose first row that is."""
    rows = rows_of(stock_id=stock_id)
    movements = StockMovement.objects.filter(stock__in=rows)
    is_stocked = Q(reason=StockMovement.Reason.STOCKED)
    sums = {
        row: (stocked, moved)
        for row, stocked, moved in movements.values_list("stock_id")
        .annotate(
            stocked=Sum("delta", filter=is_stocked, default=0),
            moved=Sum("delta", filter=~is_stocked, default=0),
        )
        .order_by()
    }
    per_order = (
        movements.exclude(is_stocked)
        .values_list("order_number")
        .annotate(out=-Sum("delta"))
        .exclude(out=0)
        .order_by()
    )
    return Ledger(
        stocked=sum(stocked for stocked, _ in sums.values()),
        out=-sum(moved for _, moved in sums.values()),
        available=sum(row.quantity for row in rows),
        differing=[
            (left, row.quantity)
            for row in rows
            if (left := sum(sums.get(row.pk, ()))) != row.quantity
        ],
        per_order={str(number): out for number, out in per_order},
        stale_writes_refused=sum(row.stale_writes_refused for row in rows),
    )


def stocked(*, stock_id: int) -> int:
    """Pieces ever set aside for a sale."""
    movements = StockMovement.objects.filter(
        stock__in=rows_of(stock_id=stock_id), reason=StockMovement.Reason.STOCKED
    )
    return int(movements.aggregate(sum=Sum("delta", default=0))["sum"])
