"""One direct purchase: replay or plan, then write under the lock of the sale.

    earlier order? -> replay
    open? within the limit? units left? -> lock [ read stock | order, quota, stock, ledger ]

No check before the lock is the only guard of anything: the statements that write key, quota and
stock check each of them again. RECOVERY lists what happens after each error.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar, NamedTuple

from django.conf import settings
from django.db import Error as DatabaseFailure
from django.db import IntegrityError, OperationalError, connection
from django.utils import timezone

from inventory.exceptions import OutOfStock, StaleFence
from inventory.statements import Statement, insert
from inventory.stock import Withdrawal
from locking import LockLost, LockTimeout, LockUnavailable
from shop.errors import (
    BadInput,
    KeyReused,
    LimitReached,
    NotOpen,
    Overloaded,
    QueueFull,
    ServiceUnavailable,
    SignInFirst,
    SoldOut,
)
from shop.models import CustomerQuota, Order, Sale, User, digest
from shop.platform.deadline import current_deadline, within_deadline
from shop.platform.metrics import ORDERS
from shop.purchase.group_commit import submit
from shop.sales.quota import take_quota
from shop.sales.stock_lock import learn_newer_fence, sale_lock, withdraw
from shop.sales.waiting_slots import waiting_slot

logger = logging.getLogger("shop")

ORDER_COLUMNS = [field for field in Order._meta.concrete_fields if not field.primary_key]
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
    # A missing table or grant: nothing was written.
    DatabaseFailure: Recovery(tries_again=False, refusal=ServiceUnavailable),
    # Nothing was written: the lock was not obtained or was lost before, or the time is over.
    LockTimeout: Recovery(tries_again=False, refusal=Overloaded),
    LockLost: Recovery(tries_again=False, refusal=Overloaded),
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


class Wanted(NamedTuple):
    """A purchase that is being placed."""

    customer_id: int
    sale: Sale
    quantity: int
    hashed_key: str


@within_deadline()
def place_order(
    *, customer_id: int, sale: Sale, quantity: int, key: str, is_first: bool = False
) -> Placed:
    """Buy `quantity` units of `sale`, once for each key.

    `sale` comes with its stock. `is_first` is a hint that the customer has no order in this sale:
    if the sale is open, only the unique keys then look for one. Raises BadInput, NotOpen, SoldOut,
    LimitReached, KeyReused, SignInFirst if the customer does not exist, and Overloaded or
    ServiceUnavailable if nothing was decided: the same key may then be sent again.
    """
    wanted, last = Wanted(customer_id, sale, quantity, digest(key)), Recovery(True, Overloaded)
    for _ in range(settings.MAX_ATTEMPTS):
        try:
            return _attempt(wanted, is_first=is_first)
        except tuple(RECOVERY) as error:
            is_first, last = False, _recover(wanted, error, last)
            if not last.tries_again:
                break
    if last.refusal is ServiceUnavailable:
        raise ServiceUnavailable  # the database may not respond
    if current_deadline().is_over:
        raise Overloaded  # another refusal might hide an order with the key
    if replayed := _replay(wanted, _earlier_orders(wanted)):
        return replayed
    raise last.refusal


def _attempt(wanted: Wanted, *, is_first: bool) -> Placed:
    if current_deadline().is_over:
        raise ServiceUnavailable
    if is_first and _is_sellable(wanted):
        return _write(wanted, is_first=True)
    earlier = _earlier_orders(wanted)
    if replayed := _replay(wanted, earlier):
        return replayed
    _check(wanted, earlier)
    return _write(wanted, is_first=not earlier)


def _recover(wanted: Wanted, error: Exception, before: Recovery) -> Recovery:
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


def _earlier_orders(wanted: Wanted) -> list[Earlier]:
    """Return the customer's orders in this sale."""
    query = EARLIER.format(key=connection.ops.quote_name("key"))
    with connection.cursor() as cursor:
        cursor.execute(query, [wanted.hashed_key, wanted.customer_id, wanted.sale.pk])
        return [Earlier(*row) for row in cursor.fetchall()]


def _replay(wanted: Wanted, earlier: Sequence[Earlier]) -> Placed | None:
    """Return the order that was placed with the same key. Raise KeyReused if it differs."""
    for sent in earlier:
        if sent.is_same:
            if sent.quantity != wanted.quantity:
                raise KeyReused
            order = Order.objects.select_related("sale").get(pk=sent.pk)
            return Placed(order=order, replayed=True)
    return None


def _is_sellable(wanted: Wanted) -> bool:
    sale = wanted.sale
    most = min(sale.limit_per_customer, sale.left)
    return sale.phase() == Sale.Phase.OPEN and 1 <= wanted.quantity <= most


def _check(wanted: Wanted, earlier: Sequence[Earlier]) -> None:
    """Refuse a purchase that cannot succeed, before it costs a lock."""
    sale, quantity = wanted.sale, wanted.quantity
    if quantity < 1:
        raise BadInput
    if sale.phase() in (Sale.Phase.BEFORE, Sale.Phase.ENDED):
        raise NotOpen
    live = sum(order.quantity for order in earlier if order.status in Order.LIVE)
    if live + quantity > sale.limit_per_customer:
        raise LimitReached
    if sale.left < quantity:
        raise SoldOut


def _write(wanted: Wanted, *, is_first: bool) -> Placed:
    """Write the order under the lock of its sale, together with others of this process.

    The contended stock row comes last, so that its row lock is held for the shortest time.
    """
    customer_id, sale, quantity, hashed = wanted
    now = timezone.now()
    order = Order(
        customer_id=customer_id,
        sale=sale,
        quantity=quantity,
        unit_price=sale.price,
        key=hashed,
        created_at=now,
        pay_by=now + timedelta(seconds=settings.PAY_WITHIN_SECONDS),
    )
    order._state.adding = False
    columns = {field.attname: getattr(order, field.attname) for field in ORDER_COLUMNS}
    statements = [insert(Order, **columns), *_quota(wanted, is_first=is_first)]
    withdrawal = Withdrawal(orders=[(order.number, quantity)], statements=statements)
    with waiting_slot(sale_id=sale.pk):
        order.pk = submit(sale_lock(sale), withdrawal, partial(withdraw, stock_id=sale.stock_id))
    ORDERS.inc()
    return Placed(order=order, replayed=False)


def _quota(wanted: Wanted, *, is_first: bool) -> list[Statement]:
    customer_id, sale, quantity, _ = wanted
    if is_first:
        return [insert(CustomerQuota, customer_id=customer_id, sale_id=sale.pk, taken=quantity)]
    return [take_quota(sale=sale, customer_id=customer_id, quantity=quantity)]
