"""The only module that writes stock, and the transaction that writes it together with orders.

A purchase takes units in two steps, so that the effect of a lock can be observed: `claim_stock`
runs before the transaction, the statements of `reserve` run inside it. The write strategy decides
what each of them does:

    naive        claim_stock only reads; reserve writes back what it computed from the quantity
    fenced       claim_stock writes the fence into the row and reads it; reserve writes only if that
                 fence is still on the row (a fence without a token cannot claim: reserve then
                 writes only if the row has not changed since claim_stock)
    conditional  claim_stock does nothing; reserve is one UPDATE that checks quantity and fence

`commit` executes the statements. MariaDB, MySQL and PostgreSQL receive them with the COMMIT in one
message: the whole transaction takes one round trip, and no row lock is held during one. SQLite and
Galera receive them one by one. A statement that changes fewer rows than it has to rolls the
transaction back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from django.db import connection
from django.db.models import F
from django.utils import timezone

from inventory.exceptions import InventoryError, OutOfStock, StaleFence
from inventory.messages import (
    Unchanged,
    in_one_message,
    in_transaction,
    is_message_atomic,
    one_by_one,
)
from inventory.models import Product, Stock, StockMovement, WriteStrategy
from inventory.statements import MakeError, Statement, insert_all
from locking.failpoints import reach

Reason = StockMovement.Reason

CHANGE = """
    UPDATE inventory_stock
    SET quantity = quantity + %s, fence_epoch = %s, fence_token = COALESCE(%s, fence_token + 1)
    WHERE id = %s AND quantity >= %s
    AND (fence_epoch < %s OR fence_epoch = %s AND fence_token <= COALESCE(%s, fence_token))
"""
RESTOCK = """
    UPDATE inventory_stock SET quantity = quantity + %s, fence_token = fence_token + 1
    WHERE id = %s AND quantity >= %s
"""
WRITE = "UPDATE inventory_stock SET quantity = %s WHERE id = %s"
WRITE_CLAIMED = """
    UPDATE inventory_stock SET quantity = %s, fence_epoch = %s, fence_token = %s
    WHERE id = %s AND fence_epoch = %s AND fence_token = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The epoch and the token of a lock; a writer with a newer one excludes older writers."""

    epoch: int
    token: int | None
    """None if the lock has no sound token: the stock row then increments its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StockReading:
    """The state of a stock row that a writer has read before it writes."""

    stock_id: int
    strategy: str
    fence: Fence
    """The fence that the write leaves on the row."""
    found: Fence | None = None
    """The fence that the row must still carry at that time."""
    quantity: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """Units to take for orders, and the statements that are committed together with it."""

    orders: Sequence[tuple[str, int]]
    """Number and quantity of each order."""
    statements: Sequence[Statement]
    """The first one inserts the order or the orders."""


def withdraw(
    withdrawals: Sequence[Withdrawal], *, stock_id: int, strategy: str, fence: Fence
) -> list[int]:
    """Write withdrawals in one transaction; return the id of the row that each one inserted first.

    Raise OutOfStock, StaleFence, or the errors of `commit`. The stock row, for which others wait,
    is written last but for its ledger line.
    """
    reading = claim_stock(stock_id=stock_id, strategy=strategy, fence=fence)
    reach("stock.read", reading=reading)
    orders = [order for one in withdrawals for order in one.orders]
    statements = [statement for one in withdrawals for statement in one.statements]
    statements += reserve(reading=reading, orders=orders)
    try:
        ids = commit(statements)
    except (OutOfStock, StaleFence) as error:
        reach("stock.refused", error=error)
        raise
    reach("stock.committed", reading=reading, orders=orders)
    firsts = accumulate((len(one.statements) for one in withdrawals[:-1]), initial=0)
    return [ids[first] for first in firsts]


def claim_stock(*, stock_id: int, strategy: str, fence: Fence) -> StockReading:
    """Claim the row if the strategy does so; return what `reserve` needs. Raise StaleFence.

    The statements run in autocommit mode: inside the order's transaction the row lock would do the
    work of the distributed lock, and a paused holder would block every purchase.
    """
    if strategy == WriteStrategy.CONDITIONAL:
        return StockReading(stock_id=stock_id, strategy=strategy, fence=fence)
    if strategy == WriteStrategy.FENCED and (token := fence.token) is not None:
        is_claimed = Stock(pk=stock_id).fenced_update((fence.epoch, token))
        if not is_claimed:
            raise StaleFence
    rows = Stock.objects.values_list("quantity", "fence_epoch", "fence_token")
    quantity, epoch, token = rows.get(pk=stock_id)
    found = fence
    if strategy == WriteStrategy.FENCED and fence.token is None:
        if epoch > fence.epoch:
            raise StaleFence
        found, fence = Fence(epoch=epoch, token=token), Fence(epoch=fence.epoch, token=token + 1)
    return StockReading(
        stock_id=stock_id, strategy=strategy, fence=fence, found=found, quantity=quantity
    )


def reserve(*, reading: StockReading, orders: Sequence[tuple[str, int]]) -> list[Statement]:
    """Return the statements that take units for orders, given as (number, quantity).

    Commit them together with the orders: all of these get their units or none does. Raise
    OutOfStock; the commit raises OutOfStock or StaleFence.
    """
    pk, fence, left = reading.stock_id, reading.fence, reading.quantity
    total = sum(quantity for _, quantity in orders)
    if left is None:
        update = _change(pk, -total, fence, if_unchanged=partial(_why_refused, reading))
    elif left < total:
        raise OutOfStock
    elif reading.strategy == WriteStrategy.FENCED:
        found = reading.found
        assert found is not None
        params = [left - total, fence.epoch, fence.token, pk, found.epoch, found.token]
        update = Statement(WRITE_CLAIMED, params, if_unchanged=StaleFence)
    else:
        update = Statement(WRITE, [left - total, pk])
    lines = []
    for number, quantity in orders:
        left = None if left is None else left - quantity
        lines.append((-quantity, number, left))
    return [update, _record(pk, lines, Reason.RESERVED, fence)]


def _change(stock_id: int, by: int, fence: Fence, if_unchanged: MakeError) -> Statement:
    """Change quantity and fence if enough units are left and the row carries no newer fence."""
    new, compared = (fence.epoch, fence.token), (fence.epoch, fence.epoch, fence.token)
    return Statement(CHANGE, [by, *new, stock_id, -by, *compared], if_unchanged=if_unchanged)


def _why_refused(reading: StockReading) -> InventoryError:
    """Return the reason why CHANGE changed no row."""
    not_newer = Stock.not_newer(reading.fence.epoch, reading.fence.token)
    rows = Stock.objects.filter(not_newer, pk=reading.stock_id)
    return OutOfStock() if rows.exists() else StaleFence()


def release(*, stock_id: int, orders: Sequence[tuple[str, int]], fence: Fence) -> list[Statement]:
    """Return the statements that put units of orders back, given as (number, quantity).

    Commit them together with the end of the orders; the commit raises StaleFence. They write the
    fence as `reserve` does, because a holder that read the quantity before must not overwrite it.
    """
    total = sum(quantity for _, quantity in orders)
    update = _change(stock_id, total, fence, if_unchanged=StaleFence)
    lines = [(quantity, number, None) for number, quantity in orders]
    return [update, _record(stock_id, lines, Reason.RETURNED, fence)]


def commit(statements: Sequence[Statement]) -> list[int]:
    """Execute the statements as one durable transaction; return the id that each one inserted.

    Raise the error of a statement's `if_unchanged`, or the database's; nothing is written then.
    Raise OutcomeUnknown if the COMMIT gets no reply: the statements may be executed even later.
    """
    try:
        if not connection.in_atomic_block and is_message_atomic():
            return in_one_message(statements)
        return in_transaction(statements)
    except Unchanged as error:
        raise error.make_error() from None


def create_stock(*, product: Product, quantity: int) -> Stock:
    """Create the stock row of a sale with its first movement; call it inside a transaction."""
    stock = Stock.objects.create(product=product, quantity=quantity)
    one_by_one([_record_stocked(stock.pk, quantity)])
    return stock


def restock(*, stock_id: int, quantity: int) -> list[Statement]:
    """Return the statements that add units to a sale that may be open.

    A negative quantity removes units; the commit raises OutOfStock if fewer are unsold.
    """
    update = Statement(RESTOCK, [quantity, stock_id, -quantity], if_unchanged=OutOfStock)
    return [update, _record_stocked(stock_id, quantity)]


def fence_off(*, epoch: int) -> None:
    """Make every stock row refuse holders of earlier epochs, before a holder of `epoch` writes."""
    Stock.objects.update(fence_epoch=epoch, fence_token=0)


def count_stale_write(*, stock_id: int) -> Fence:
    """Count a refused stale write on the row, and return the fence that refused it.

    Call it outside of the transaction that was rolled back.
    """
    rows = Stock.objects.filter(pk=stock_id)
    rows.update(stale_writes_refused=F("stale_writes_refused") + 1)
    epoch, token = rows.values_list("fence_epoch", "fence_token").get()
    return Fence(epoch=epoch, token=token)


def _record_stocked(stock_id: int, quantity: int) -> Statement:
    return _record(stock_id, [(quantity, None, None)], Reason.STOCKED, Fence(epoch=0, token=0))


def _record(
    stock_id: int, lines: Sequence[tuple[int, str | None, int | None]], reason: Reason, fence: Fence
) -> Statement:
    """Return the INSERT of movements, given as (delta, order number, quantity after)."""
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
