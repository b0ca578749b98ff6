"""The only module that writes stock.

A purchase takes its pieces in two steps, so that what a lock is for can be seen: `look` before the
transaction, what `to_take` says inside it. What each does depends on the strategy:

    naive        look reads the quantity; to_take writes back what it computed from it
    fenced       look claims the row with the fence and reads; to_take writes where the claim stands
                 (without a token nothing is claimed: to_take writes where nobody wrote since look)
    conditional  look does nothing; to_take is one UPDATE that checks quantity and fence itself
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from django.db.models import F, Q
from django.utils import timezone

from inventory.batch import Statement, insert_all
from inventory.exceptions import InventoryError, OutOfStock, StaleFence
from inventory.models import Product, Stock, StockMovement
from locking.models import WriteStrategy

Reason = StockMovement.Reason

# A token of NULL is that of a lock without sound tokens: the row then counts for itself.
CHANGE = """
    UPDATE inventory_stock
    SET quantity = quantity + %s, fence_epoch = %s, fence_token = COALESCE(%s, fence_token + 1)
    WHERE id = %s AND quantity >= %s
    AND (fence_epoch < %s OR fence_epoch = %s AND fence_token <= COALESCE(%s, fence_token))
"""
WRITE = "UPDATE inventory_stock SET quantity = %s WHERE id = %s"
WRITE_CLAIMED = """
    UPDATE inventory_stock SET quantity = %s, fence_epoch = %s, fence_token = %s
    WHERE id = %s AND fence_epoch = %s AND fence_token = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """How new a writer's lock is. token None: the lock has no sound token, the row mints one."""

    epoch: int
    token: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a writer knows of a stock row before it writes."""

    stock_id: int
    strategy: str
    fence: Fence
    """What its write leaves on the row."""
    found: Fence | None = None
    """What the row must still carry then."""
    quantity: int | None = None


def _not_newer(fence: Fence) -> Q:
    """Rows that no newer holder has touched."""
    if fence.token is None:
        return Q(fence_epoch__lte=fence.epoch)
    return Q(fence_epoch__lt=fence.epoch) | Q(fence_epoch=fence.epoch, fence_token__lte=fence.token)


def look(*, stock_id: int, strategy: str, fence: Fence) -> Look:
    """Learn before the transaction what `to_take` will need. Raises StaleFence.

    Statements of their own: inside the order's transaction the row lock would do the lock's work,
    and a paused holder would block the whole shop.
    """
    if strategy == WriteStrategy.CONDITIONAL:
        return Look(stock_id=stock_id, strategy=strategy, fence=fence)
    if strategy == WriteStrategy.FENCED and fence.token is not None:
        not_newer = Stock.objects.filter(_not_newer(fence), pk=stock_id)
        if not not_newer.update(fence_epoch=fence.epoch, fence_token=fence.token):
            raise StaleFence
    rows = Stock.objects.values_list("quantity", "fence_epoch", "fence_token")
    quantity, epoch, token = rows.get(pk=stock_id)
    found = fence
    if strategy == WriteStrategy.FENCED and fence.token is None:
        if epoch > fence.epoch:
            raise StaleFence
        found, fence = Fence(epoch=epoch, token=token), Fence(epoch=fence.epoch, token=token + 1)
    return Look(stock_id=stock_id, strategy=strategy, fence=fence, found=found, quantity=quantity)


def to_take(*, seen: Look, orders: Sequence[tuple[str, int]]) -> list[Statement]:
    """What takes pieces for orders, given as (number, quantity), to be committed with them.

    For all of them or for none: raises OutOfStock, and the commit OutOfStock or StaleFence.
    """
    pk, fence, left = seen.stock_id, seen.fence, seen.quantity
    total = sum(quantity for _, quantity in orders)
    if left is None:
        update = _change(pk, -total, fence, unless=partial(_why_refused, seen))
    elif left < total:
        raise OutOfStock
    elif seen.strategy == WriteStrategy.FENCED:
        assert seen.found is not None
        params = [left - total, fence.epoch, fence.token, pk, seen.found.epoch, seen.found.token]
        update = Statement(WRITE_CLAIMED, params, unless=StaleFence)
    else:
        update = Statement(WRITE, [left - total, pk])
    lines = []
    for number, quantity in orders:
        left = None if left is None else left - quantity
        lines.append((-quantity, number, left))
    return [update, _record(pk, lines, Reason.RESERVED, fence)]


def _change(stock_id: int, by: int, fence: Fence, unless: Callable[[], Exception]) -> Statement:
    """Change the quantity and mark the row, where that many are left and no newer fence is."""
    mark, compare = (fence.epoch, fence.token), (fence.epoch, fence.epoch, fence.token)
    return Statement(CHANGE, [by, *mark, stock_id, -by, *compare], unless=unless)


def _why_refused(seen: Look) -> InventoryError:
    """Why CHANGE changed no row."""
    rows = Stock.objects.filter(_not_newer(seen.fence), pk=seen.stock_id)
    return OutOfStock() if rows.exists() else StaleFence()


def to_put_back(
    *, stock_id: int, quantity: int, order_number: str, fence: Fence
) -> list[Statement]:
    """What returns an order's pieces, to be committed with its end; that raises StaleFence.

    It marks the row as `to_take` does: a holder that read the quantity before must not write over
    it.
    """
    update = _change(stock_id, quantity, fence, unless=StaleFence)
    return [update, _record(stock_id, [(quantity, order_number, None)], Reason.RETURNED, fence)]


def stock_up(*, product: Product, quantity: int) -> Stock:
    """Create the stock row of a sale with its first movement; call it inside a transaction."""
    stock = Stock.objects.create(product=product, quantity=quantity)
    _stocked(stock.pk, quantity)
    return stock


def restock(*, stock_id: int, quantity: int) -> None:
    """Add units to a sale that may be running; call it inside a transaction."""
    Stock.objects.filter(pk=stock_id).update(
        quantity=F("quantity") + quantity, fence_token=F("fence_token") + 1
    )
    _stocked(stock_id, quantity)


def touch(*, stock_id: int) -> None:
    """Write a row as it is: OperationalError when nobody can write it."""
    Stock.objects.filter(pk=stock_id).update(quantity=F("quantity"))


def outdate(*, epoch: int) -> None:
    """Refuse every holder of before `epoch` at every row, before the first one of it has come."""
    Stock.objects.update(fence_epoch=epoch, fence_token=0)


def count_stale_write(*, stock_id: int) -> Fence:
    """Remember that a stale writer was refused, and return the fence that refused it.

    Outside the transaction that the writer lost.
    """
    rows = Stock.objects.filter(pk=stock_id)
    rows.update(stale_writes_refused=F("stale_writes_refused") + 1)
    epoch, token = rows.values_list("fence_epoch", "fence_token").get()
    return Fence(epoch=epoch, token=token)


def _stocked(stock_id: int, quantity: int) -> None:
    StockMovement.objects.create(stock_id=stock_id, delta=quantity, reason=Reason.STOCKED)


def _record(
    stock_id: int, lines: Sequence[tuple[int, str, int | None]], reason: Reason, fence: Fence
) -> Statement:
    """The ledger's rows of a change: delta, order's number, what was left if computed."""
    return insert_all(
        StockMovement,
        ("delta", "order_number", "quantity_after"),
        lines,
        stock_id=stock_id,
        reason=reason,
        fence_epoch=fence.epoch,
        fence_token=fence.token or 0,
        created_at=timezone.now(),
    )
