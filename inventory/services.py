"""The only module that writes stock.

A purchase takes its pieces in two steps, so that what a lock is for can be seen: `look` before the
transaction, `take` inside it. What each does depends on the discipline:

    naive        look reads the quantity; take writes back what it computed from it
    fenced       look claims the row with the fence and reads; take writes where the claim stands
    conditional  look does nothing; take is one UPDATE that checks quantity and fence itself
"""

from dataclasses import dataclass

from django.db.models import F, Q

from inventory.exceptions import OutOfStock, StaleFence
from inventory.models import Product, Stock, StockMovement
from locking.models import Discipline

MINT_TRIES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """How new a writer's lock is. token None: the lock has no sound token, the row mints one."""

    epoch: int
    token: int | None


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


def take(*, seen: Look, quantity: int, order_number: str) -> None:
    """Take pieces for an order; inside its transaction. Raises OutOfStock or StaleFence."""
    rows = Stock.objects.filter(pk=seen.stock_id)
    fence, left = seen.fence, None
    if seen.quantity is None:
        changes = {"quantity": F("quantity") - quantity, **_mark(fence)}
        if not rows.filter(_not_newer(fence), quantity__gte=quantity).update(**changes):
            if rows.filter(_not_newer(fence)).exists():
                raise OutOfStock
            raise StaleFence
    else:
        left = seen.quantity - quantity
        if left < 0:
            raise OutOfStock
        if seen.discipline == Discipline.FENCED:
            rows = rows.filter(fence_epoch=fence.epoch, fence_token=fence.token)
        if not rows.update(quantity=left):
            raise StaleFence
    _record(seen.stock_id, -quantity, StockMovement.Reason.RESERVED, order_number, fence, left)


def put_back(*, stock_id: int, quantity: int, order_number: str, fence: Fence) -> None:
    """Return an order's pieces; inside its transaction. Raises StaleFence.

    It marks the row as `take` does: a holder that read the quantity before must not write over it.
    """
    changes = {"quantity": F("quantity") + quantity, **_mark(fence)}
    if not Stock.objects.filter(_not_newer(fence), pk=stock_id).update(**changes):
        raise StaleFence
    _record(stock_id, quantity, StockMovement.Reason.RETURNED, order_number, fence, None)


def stock_up(*, product: Product, quantity: int) -> Stock:
    """Set pieces of a product aside for a sale; inside a transaction."""
    stock = Stock.objects.create(product=product, quantity=quantity)
    _record(
        stock.pk, quantity, StockMovement.Reason.STOCKED, None, Fence(epoch=0, token=0), quantity
    )
    return stock


def restock(*, stock_id: int, quantity: int) -> None:
    """Add pieces to a sale that may be running; inside a transaction."""
    Stock.objects.filter(pk=stock_id).update(
        quantity=F("quantity") + quantity, fence_token=F("fence_token") + 1
    )
    fence = Fence(epoch=0, token=0)
    _record(stock_id, quantity, StockMovement.Reason.STOCKED, None, fence, None)


def count_stale_write(*, stock_id: int) -> Fence:
    """Remember that a stale writer was refused, and return the fence that refused it.

    Outside the transaction that the writer lost.
    """
    rows = Stock.objects.filter(pk=stock_id)
    rows.update(stale_writes_refused=F("stale_writes_refused") + 1)
    epoch, token = rows.values_list("fence_epoch", "fence_token").get()
    return Fence(epoch=epoch, token=token)


def _mark(fence: Fence) -> dict[str, object]:
    """The columns that show which holder touched the row last."""
    if fence.token is not None:
        return {"fence_epoch": fence.epoch, "fence_token": fence.token}
    return {"fence_epoch": fence.epoch, "fence_token": F("fence_token") + 1}


def _record(
    stock_id: int,
    delta: int,
    reason: StockMovement.Reason,
    order_number: str | None,
    fence: Fence,
    left: int | None,
) -> None:
    StockMovement.objects.create(
        stock_id=stock_id,
        delta=delta,
        reason=reason,
        order_number=order_number,
        quantity_after=left,
        fence_epoch=fence.epoch,
        fence_token=fence.token or 0,
    )
