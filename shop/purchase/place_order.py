"""One direct purchase: replay or plan, then write under the lock of the sale.

    earlier order? -> replay
    open? within the limit? units left? -> lock [ claim stock | order, quota, stock, ledger ]

No check before the lock is the only guard of anything: the statements that write key, quota and
stock check each of them again. RECOVERY lists what happens after each error.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar, NamedTuple

from django.conf import settings
from django.db import IntegrityError, InterfaceError, OperationalError, connection
from django.utils import timezone

from inventory.exceptions import OutOfStock, StaleFence
from locking import LockTimeout, LockUnavailable
from shop.errors import (
    KeyReused,
    Overloaded,
    QueueFull,
    ServiceUnavailable,
    ShopError,
    SignInFirst,
    SoldOut,
)
from shop.models import Order, User, new_order_number
from shop.platform.deadline import current_deadline, within_deadline
from shop.platform.metrics import ORDERS
from shop.purchase.group_commit import submit
from shop.sales.purchase_request import (
    NewOrder,
    PurchaseRequest,
    pay_by,
    refusal_of,
    withdrawal_of,
)
from shop.sales.stock_lock import learn_newer_fence
from shop.sales.waiting_slots import waiting_slot

logger = logging.getLogger("shop")

# Raw SQL, because the ORM's own work would cost more than the query.
EARLIER = """
    SELECT id, quantity, status, {key} = %s FROM shop_order WHERE customer_id = %s AND sale_id = %s
"""


class Recovery(NamedTuple):
    """The step that follows an error of an attempt."""

    tries_again: bool
    refusal: type[Overloaded | SoldOut]
    """The answer if the purchase does not try again, or no longer may."""


RECOVERY: dict[type[Exception], Recovery] = {
    OutOfStock: Recovery(tries_again=False, refusal=SoldOut),
    # The lock has a newer holder, or its store forgot its tokens: `learn_newer_fence`.
    StaleFence: Recovery(tries_again=True, refusal=Overloaded),
    # The same form, or another one of the same customer, was committed first.
    IntegrityError: Recovery(tries_again=True, refusal=Overloaded),
    # A deadlock, or a lost reply: perhaps that of the COMMIT.
    OperationalError: Recovery(tries_again=True, refusal=ServiceUnavailable),
    # The connection is closed: nothing was written.
    InterfaceError: Recovery(tries_again=False, refusal=ServiceUnavailable),
    # Nothing was written: the lock was not obtained, or the time is over.
    LockTimeout: Recovery(tries_again=False, refusal=Overloaded),
    LockUnavailable: Recovery(tries_again=False, refusal=ServiceUnavailable),
    QueueFull: Recovery(tries_again=False, refusal=QueueFull),
    ServiceUnavailable: Recovery(tries_again=False, refusal=ServiceUnavailable),
}
"""Error -> action -> answer. Every further attempt first looks for an order with the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An order, placed by this purchase or by an earlier one with the same key (replayed)."""

    order: Order
    replayed: bool
    status: ClassVar[int] = HTTPStatus.CREATED

    @property
    def receipt(self) -> dict[str, Any]:
        """The order as JSON."""
        return self.order.receipt


@within_deadline()
def place_order(wanted: PurchaseRequest) -> Placed:
    """Buy units of a direct sale, once for each key.

    With `is_first`, an open sale is written at once: a unique key reveals an earlier order. Raises
    BadInput, NotOpen, SoldOut, LimitReached, UnpaidLimitReached, KeyReused, SignInFirst if the
    customer does not exist, and Overloaded or ServiceUnavailable if nothing was decided: the same
    key may then be sent again.
    """
    last = Recovery(tries_again=True, refusal=Overloaded)
    for _ in range(settings.MAX_ATTEMPTS):
        try:
            return _attempt(wanted)
        except tuple(RECOVERY) as error:
            wanted, last = wanted._replace(is_first=False), _recover(wanted, error, last)
            if not last.tries_again:
                break
        except ShopError as error:
            if last.refusal is ServiceUnavailable:
                raise ServiceUnavailable from error  # the attempt before may still be committed
            raise
    if last.refusal is ServiceUnavailable:
        raise ServiceUnavailable  # the database may not respond
    if current_deadline().is_over:
        raise Overloaded  # another refusal might hide an order with the key
    if replayed := _replay(wanted, _earlier_orders(wanted)):
        return replayed
    raise last.refusal


def _attempt(wanted: PurchaseRequest) -> Placed:
    if wanted.is_first and refusal_of(wanted) is None:
        return _write(wanted, has_quota=False)
    earlier = _earlier_orders(wanted)
    if replayed := _replay(wanted, earlier):
        return replayed
    live = sum(order.quantity for order in earlier if order.status in Order.LIVE)
    expired = sum(order.status == Order.Status.EXPIRED for order in earlier)
    if refusal := refusal_of(wanted, taken=live, expired=expired):
        raise refusal
    return _write(wanted, has_quota=bool(earlier))


def _recover(wanted: PurchaseRequest, error: Exception, before: Recovery) -> Recovery:
    """Return the step that follows an error; `before` is that of the attempt before."""
    found = next(found for kind, found in RECOVERY.items() if isinstance(error, kind))
    if isinstance(error, StaleFence):
        learn_newer_fence(wanted.sale)
    if isinstance(error, OperationalError):
        connection.close_if_unusable_or_obsolete()  # the next attempt opens another one
    if (
        isinstance(error, IntegrityError)
        and not User.objects.filter(pk=wanted.customer_id).exists()
    ):
        raise SignInFirst from error
    if found.tries_again:
        logger.info("Purchase failed: %r", error)
    # A later refusal does not decide the unknown outcome of an earlier attempt.
    refusal = before.refusal if before.refusal is ServiceUnavailable else found.refusal
    tries_again = found.tries_again and current_deadline().left(settings.LOCK_TIMEOUT) > 0
    return Recovery(tries_again, refusal)


class Earlier(NamedTuple):
    """The columns of a customer's earlier order that a purchase needs."""

    pk: int
    quantity: int
    status: str
    is_same: bool
    """True if it was sent with the same key."""


def _earlier_orders(wanted: PurchaseRequest) -> list[Earlier]:
    """Return the customer's orders in this sale."""
    query = EARLIER.format(key=connection.ops.quote_name("key"))
    with connection.cursor() as cursor:
        cursor.execute(query, [wanted.hashed_key, wanted.customer_id, wanted.sale.pk])
        return [Earlier(*row) for row in cursor.fetchall()]


def _replay(wanted: PurchaseRequest, earlier: Sequence[Earlier]) -> Placed | None:
    """Return the order that was placed with the same key. Raise KeyReused if it differs."""
    for sent in earlier:
        if sent.is_same:
            if sent.quantity != wanted.quantity:
                raise KeyReused
            order = Order.objects.select_related("sale").get(pk=sent.pk)
            return Placed(order=order, replayed=True)
    return None


def _write(wanted: PurchaseRequest, *, has_quota: bool) -> Placed:
    """Write the order under the lock of its sale, together with others of this process."""
    if current_deadline().is_over:
        raise ServiceUnavailable
    customer, sale, now = wanted.customer_id, wanted.sale, timezone.now()
    new = NewOrder(new_order_number(), customer, wanted.quantity, wanted.hashed_key)
    with_quota = {customer} if has_quota else ()
    withdrawal = withdrawal_of([new], sale=sale, placed_at=now, with_quota=with_quota)
    with waiting_slot(sale_id=sale.pk):
        pk, lock = submit(withdrawal, sale=sale)
    ORDERS.inc()
    known = {"created_at": now, "pay_by": pay_by(now), "lock": lock, **new._asdict()}
    order = Order(pk=pk, sale=sale, unit_price=sale.price, **known)
    order._state.adding = False
    return Placed(order=order, replayed=False)
