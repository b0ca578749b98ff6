"""The only module that writes stock.

A purchase takes its pieces in two steps, so that what a lock is for can be seen: `look` before the
transaction, `take` inside it. What each does depends on the discipline:

    naive        look reads the quantity; take writes back what it computed from it
    fenced       look claims the row with the fence and reads; take writes where the claim stands
    conditional  look does nothing; take is one UPDATE that checks quantity and fence itself
"""

from dataclasses import dataclass

from django.db.models import F, Q
from django.utils import timezone

from inventory.batch import Statement, insert
from inventory.exceptions import OutOfStock, RowRefused, StaleFence
from inventory.models import Product, Stock, StockMovement
from locking.models import Discipline

MINT_TRIES = 100
STOCK = Stock._meta.db_table
Reason = StockMovement.Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """How new a writer's lock is. token None: the lock has no sound token, the row mints one."""

    epoch: int
    token: int | None

    @property
    def mark(self) -> str:
        """Assignments that leave this fence on a row; their values are `marked`."""
        token = "fence_token + 1" if self.token is None else "%s"
        return f"fence_epoch = %s, fence_token = {token}"

    @property
    def marked(self) -> list[int]:
        """The values of `mark`."""
        return [self.epoch] if self.token is None else [self.epoch, self.token]

    @property
    def is_newest(self) -> str:
        """Condition that no newer holder has touched the row; its values are `compared`."""
        if self.token is None:
            return "fence_epoch <= %s"
        return "(fence_epoch < %s OR (fence_epoch = %s AND fence_token <= %s))"

    @property
    def compared(self) -> list[int]:
        """The values of `is_newest`."""
        return [self.epoch] if self.token is None else [self.epoch, self.epoch, self.token]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a writer knows of a stock row before it writes."""

    stock_id: int
    discipline: str
    fence: Fence
    quantity: int | None = None


def _not_newer(fence: Fence) -> Q:
    """Rows that no newer holder has touched."""
    if fence.token is None:
        return Q(fence_epoch__lte=fence.epoch)
    return Q(fence_epoch__lt=fence.epoch) | Q(fence_epoch=fence.epoch, fence_token__lte=fence.token)


def look(*, stock_id: int, discipline: str, fence: Fence) -> Look:
    """Learn before the transaction what `take` will need. Raises StaleFence.

    Statements of their own: inside the order's transaction the row lock would do the lock's work,
    and a paused holder would block the whole shop.
    """
    if discipline == Discipline.CONDITIONAL:
        return Look(stock_id=stock_id, discipline=discipline, fence=fence)
    if discipline == Discipline.FENCED:
        fence = _claim(stock_id, fence)
    quantity = Stock.objects.values_list("quantity", flat=True).get(pk=stock_id)
    return Look(stock_id=stock_id, discipline=discipline, fence=fence, quantity=quantity)


def _claim(stock_id: int, fence: Fence) -> Fence:
    """Put the fence on the row; from then on every older holder is refused."""
    rows = Stock.objects.filter(pk=stock_id)
    if fence.token is not None:
        claim = {"fence_epoch": fence.epoch, "fence_token": fence.token}
        if not rows.filter(_not_newer(fence)).update(**claim):
            raise StaleFence
        return fence
    for _ in range(MINT_TRIES):
        epoch, token = rows.values_list("fence_epoch", "fence_token").get()
        if epoch > fence.epoch:
            raise StaleFence
        # Two that read the same token cannot both get past this one.
        seen = rows.filter(fence_epoch=epoch, fence_token=token)
        if seen.update(fence_epoch=fence.epoch, fence_token=token + 1):
            return Fence(epoch=fence.epoch, token=token + 1)
    raise StaleFence("The stock row is claimed faster than this writer can follow.")


def take(*, seen: Look, quantity: int, order_number: str) -> list[Statement]:
    """What takes pieces for an order, to be committed together with it. Raises OutOfStock.

    The commit raises StaleFence, or RowRefused: then `why_refused` tells which it was.
    """
    fence, left = seen.fence, None
    if seen.quantity is None:
        update = Statement(
            f"UPDATE {STOCK} SET quantity = quantity - %s, {fence.mark}"
            f" WHERE id = %s AND quantity >= %s AND {fence.is_newest}",
            [quantity, *fence.marked, seen.stock_id, quantity, *fence.compared],
            unless=RowRefused,
        )
    else:
        left = seen.quantity - quantity
        if left < 0:
            raise OutOfStock
        update = Statement(f"UPDATE {STOCK} SET quantity = %s WHERE id = %s", [left, seen.stock_id])
        if seen.discipline == Discipline.FENCED:
            claimed = " AND fence_epoch = %s AND fence_token = %s"
            update = Statement(
                update.sql + claimed, [*update.params, fence.epoch, fence.token], unless=StaleFence
            )
    return [update, _record(seen.stock_id, -quantity, Reason.RESERVED, order_number, fence, left)]


def why_refused(*, seen: Look, quantity: int) -> type[OutOfStock] | type[StaleFence]:
    """Why a conditional UPDATE changed no row; after its transaction."""
    rows = Stock.objects.filter(_not_newer(seen.fence), pk=seen.stock_id)
    return OutOfStock if rows.exists() else StaleFence


def put_back(*, stock_id: int, quantity: int, order_number: str, fence: Fence) -> list[Statement]:
    """What returns an order's pieces, to be committed with its end; that raises StaleFence.

    It marks the row as `take` does: a holder that read the quantity before must not write over it.
    """
    update = Statement(
        f"UPDATE {STOCK} SET quantity = quantity + %s, {fence.mark}"
        f" WHERE id = %s AND {fence.is_newest}",
        [quantity, *fence.marked, stock_id, *fence.compared],
        unless=StaleFence,
    )
    return [update, _record(stock_id, quantity, Reason.RETURNED, order_number, fence, None)]


def stock_up(*, product: Product, quantity: int) -> Stock:
    """Set pieces of a product aside for a sale; inside a transaction."""
    stock = Stock.objects.create(product=product, quantity=quantity)
    _stocked(stock.pk, quantity)
    return stock


def restock(*, stock_id: int, quantity: int) -> None:
    """Add pieces to a sale that may be running; inside a transaction."""
    Stock.objects.filter(pk=stock_id).update(
        quantity=F("quantity") + quantity, fence_token=F("fence_token") + 1
    )
    _stocked(stock_id, quantity)


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
    stock_id: int,
    delta: int,
    reason: Reason,
    order_number: str | None,
    fence: Fence,
    left: int | None,
) -> Statement:
    """The ledger's row of a change."""
    return insert(
        StockMovement,
        stock_id=stock_id,
        delta=delta,
        reason=reason,
        order_number=order_number,
        quantity_after=left,
        fence_epoch=fence.epoch,
        fence_token=fence.token or 0,
        created_at=timezone.now(),
    )
