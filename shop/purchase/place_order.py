"""One purchase, from the form to the order.

    key -> open? -> sold out? -> limit? -> lock [ look | order, allowance, stock, ledger ] -> answer

Each step is dearer and rarer than the one before. The lock is around the transaction, so that the
next holder sees what this one committed. Nothing in front of the lock is the only guard of
anything: the key, the limit and the stock are each checked again by the statement that writes them.
"""

import hashlib
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from django.conf import settings
from django.db import IntegrityError, OperationalError, connection
from django.utils import timezone

from inventory import stock
from inventory.batch import Statement, commit, insert
from inventory.exceptions import OutOfStock, StaleFence
from locking import Lease, LockError, LockLost, LockTimeout, LockUnavailable, lock, locks, policy
from locking.failpoints import reach
from locking.policy.lock import PolicyLock
from shop.errors import (
    BadInput,
    KeyReused,
    LimitReached,
    NotOpen,
    Overloaded,
    ServiceUnavailable,
    SoldOut,
)
from shop.models import CustomerQuota, Order, Sale, User
from shop.purchase.admission import in_line
from shop.purchase.group_commit import serve

logger = logging.getLogger("shop")

ORDER_COLUMNS = [field for field in Order._meta.concrete_fields if not field.primary_key]
# By hand: on the purchase path the ORM's own work would cost more than the query.
EARLIER = """
    SELECT id, sale_id, quantity, status, {key} = %s FROM shop_order
    WHERE customer_id = %s AND ({key} = %s OR sale_id = %s)
"""
TAKE_QUOTA = """
    UPDATE shop_customerquota SET taken = taken + %s
    WHERE customer_id = %s AND sale_id = %s AND taken <= %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The order, and whether this very form had placed it before."""

    order: Order
    replayed: bool
    status: ClassVar[int] = HTTPStatus.CREATED

    @property
    def url(self) -> str:
        """The order's page."""
        return self.order.get_absolute_url()

    @property
    def receipt(self) -> dict[str, Any]:
        """The order as JSON."""
        return self.order.receipt


def digest(key: str) -> str:
    """How an idempotency key is stored: every database compares these alike."""
    return hashlib.sha256(key.encode()).hexdigest()


def lock_name(sale_id: int) -> str:
    """Return the name of the lock that guards the stock of a sale."""
    return f"sale:{sale_id}"


def is_late(began: float) -> bool:
    """Return True once a request that arrived at `began` (monotonic) has passed HARD_DEADLINE."""
    deadline: float = began + settings.HARD_DEADLINE
    return time.monotonic() > deadline


def sale_lock(sale: Sale, *, began: float | None = None) -> PolicyLock:
    """Return the lock of a sale, which waits until LOCK_TIMEOUT seconds after `began` or now."""
    waited = 0.0 if began is None else time.monotonic() - began
    return lock(lock_name(sale.pk), timeout=max(0.0, settings.LOCK_TIMEOUT - waited))


def fence_of(lease: Lease) -> stock.Fence:
    """What the stock row needs to know of a lease."""
    epoch, token = lease.fence
    return stock.Fence(epoch=epoch, token=token if lease.backend.capabilities.fencing else None)


def learn_newer_fence(sale: Sale) -> None:
    """After a refusal: read the policy again and let no later token be older than the row's.

    The second matters to a lock store that restarted without its data and with its clock set back.
    """
    policy.invalidate()
    newest = stock.count_stale_write(stock_id=sale.stock_id)
    with suppress(LockError):  # the next attempt meets the same error and reports it
        in_force = policy.current()
        if newest.token is not None and in_force.epoch == newest.epoch:
            locks[in_force.backend].raise_token_floor(lock_name(sale.pk), newest.token)


def place_order(
    *,
    customer: User,
    sale: Sale,
    quantity: int,
    key: str,
    is_first: bool = False,
    began: float | None = None,
) -> Placed:
    """Buy `quantity` pieces of `sale`, once for each key.

    `sale` comes with its stock. `is_first` is a hint that the customer has no order in this sale:
    where it is open, the unique keys then look for one. `began` is the monotonic time at which the
    request came, from which all its waits count together. Raises BadInput, NotOpen, SoldOut,
    LimitReached, KeyReused, and Overloaded or ServiceUnavailable if nothing was decided: the same
    key may then be sent again.
    """
    hashed, began = digest(key), time.monotonic() if began is None else began
    if is_late(began):
        raise ServiceUnavailable
    if not (is_first and _may_sell(sale, quantity)):
        earlier = _orders_of(customer, sale, hashed)
        if sent := _sent_before(earlier, sale, quantity):
            return sent
        _admit(earlier, sale, quantity)
        is_first = not earlier
    failed: OperationalError | None = None
    for _ in range(settings.MAX_ATTEMPTS):
        try:
            draft = _draft(customer, sale, quantity, hashed, is_first=is_first, began=began)
            order = _buy(draft)
        except OutOfStock:
            if sent := _sent_before(_orders_of(customer, sale, hashed), sale, quantity):
                return sent
            raise SoldOut from None
        except StaleFence:
            learn_newer_fence(sale)
        except IntegrityError:
            # The same form, or another one of the same customer, got there first.
            if sent := _sent_before(_orders_of(customer, sale, hashed), sale, quantity):
                return sent
            is_first = not CustomerQuota.objects.filter(customer=customer, sale=sale).exists()
        except OperationalError as error:
            failed = error
            if time.monotonic() >= began + settings.LOCK_TIMEOUT:
                break
            logger.warning("purchase will be tried again: %s", error)
        except Overloaded:
            if failed is None:
                raise
            break
        else:
            return Placed(order=order, replayed=False)
    if failed is not None:
        # Not Overloaded: the reply that was lost may be that of a COMMIT.
        raise ServiceUnavailable from failed
    raise Overloaded


class Earlier(NamedTuple):
    """An order that the customer has already, as far as a purchase asks."""

    pk: int
    sale_id: int
    quantity: int
    status: str
    is_same: bool
    """It was sent with the very same key."""


def _orders_of(customer: User, sale: Sale, hashed: str) -> list[Earlier]:
    """The customer's orders in this sale, and whichever was sent with this key."""
    query = EARLIER.format(key=connection.ops.quote_name("key"))
    with connection.cursor() as cursor:
        cursor.execute(query, [hashed, customer.pk, hashed, sale.pk])
        return [Earlier(*row) for row in cursor.fetchall()]


def _sent_before(earlier: Sequence[Earlier], sale: Sale, quantity: int) -> Placed | None:
    for sent in earlier:
        if sent.is_same:
            if (sent.sale_id, sent.quantity) != (sale.pk, quantity):
                raise KeyReused
            order = Order.objects.select_related("sale").get(pk=sent.pk)
            return Placed(order=order, replayed=True)
    return None


def _may_sell(sale: Sale, quantity: int) -> bool:
    most = min(sale.limit_per_customer, sale.left)
    return sale.phase() == Sale.Phase.OPEN and 1 <= quantity <= most


def _admit(earlier: Sequence[Earlier], sale: Sale, quantity: int) -> None:
    """Refuse what cannot succeed before it costs a lock."""
    if quantity < 1:
        raise BadInput
    phase = sale.phase()
    if phase in (Sale.Phase.BEFORE, Sale.Phase.ENDED):
        raise NotOpen
    live = sum(
        order.quantity
        for order in earlier
        if order.sale_id == sale.pk and order.status in Order.LIVE
    )
    if live + quantity > sale.limit_per_customer:
        raise LimitReached
    if sale.left < quantity:
        raise SoldOut


class Draft(NamedTuple):
    """An order that is not written yet: its `pk` is None."""

    order: Order
    statements: list[Statement]
    """Its own rows; the order's comes first."""
    began: float
    """When its request came (monotonic)."""


def _buy(draft: Draft) -> Order:
    order, began = draft.order, draft.began
    sale = order.sale
    try:
        policy.current()  # not under the lock, where all would wait for it
        if is_late(began):
            raise ServiceUnavailable
        with in_line(sale_id=sale.pk):
            serve(sale_lock(sale, began=began), draft, _write)
    except LockTimeout:
        raise Overloaded from None
    except LockUnavailable as error:
        if order.pk is None:
            raise ServiceUnavailable from error
        logger.warning("order %s stands, its lock was not released: %s", order, error)
    except LockLost as error:
        # The order is committed and the row took its fence: the sale stands, the lock did not.
        if order.pk is None:
            raise Overloaded from error
        logger.warning("order %s stands, its lock was lost: %s", order, error)
    return order


def _write(drafts: Sequence[Draft], lease: Lease) -> None:
    """Write all of them in one transaction."""
    if is_late(drafts[0].began):  # who leads has waited longest
        raise ServiceUnavailable
    try:
        reading = stock.read_stock(
            stock_id=drafts[0].order.sale.stock_id,
            strategy=lease.strategy,
            fence=fence_of(lease),
        )
        reach("purchase.check", reading=reading)
        statements = [statement for draft in drafts for statement in draft.statements]
        orders = [(draft.order.number, draft.order.quantity) for draft in drafts]
        statements += stock.reserve(reading=reading, orders=orders)
        try:
            ids = iter(commit(statements))
        except (OutOfStock, StaleFence) as error:
            reach("purchase.refused", error=error)
            raise
        for draft in drafts:
            draft.order.pk, *_ = islice(ids, len(draft.statements))
        reach("purchase.committed")
    except OperationalError:
        connection.close_if_unusable_or_obsolete()
        raise


def _draft(
    customer: User,
    sale: Sale,
    quantity: int,
    hashed: str,
    *,
    is_first: bool,
    began: float,
) -> Draft:
    """The order, and what writes all of it but the stock; made before the lock is asked for.

    The hot stock row comes last, so that its own lock is held for the shortest time.
    """
    now = timezone.now()
    order = Order(
        customer_id=customer.pk,
        sale=sale,
        quantity=quantity,
        unit_price=sale.price,
        key=hashed,
        created_at=now,
        pay_by=now + timedelta(seconds=settings.PAY_WITHIN_SECONDS),
    )
    order._state.adding = False
    columns = {field.attname: getattr(order, field.attname) for field in ORDER_COLUMNS}
    allowance = _take_quota(customer, sale, quantity, is_first=is_first)
    return Draft(order, [insert(Order, **columns), *allowance], began)


def _take_quota(customer: User, sale: Sale, quantity: int, *, is_first: bool) -> list[Statement]:
    if is_first:
        return [insert(CustomerQuota, customer_id=customer.pk, sale_id=sale.pk, taken=quantity)]
    room = sale.limit_per_customer - quantity
    params = [quantity, customer.pk, sale.pk, room]
    return [Statement(TAKE_QUOTA, params, if_unchanged=LimitReached)]
