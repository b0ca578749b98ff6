"""One direct purchase, from the form to the order.

    key -> open? -> sold out? -> limit? -> lock [ read stock | order, quota, stock, ledger ]

Each step costs more and is reached less often than the one before. The lock encloses the
transaction, so that the next holder reads what this one committed. No check before the lock is the
only guard of anything: the statements that write key, quota and stock check each of them again.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from django.conf import settings
from django.db import IntegrityError, OperationalError, connection
from django.utils import timezone

from inventory import stock
from inventory.exceptions import OutOfStock, StaleFence
from inventory.statements import Statement, insert
from locking import Lease, LockLost, LockTimeout, LockUnavailable, policy
from locking.failpoints import reach
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
from shop.platform.deadline import is_late
from shop.platform.keys import digest
from shop.purchase.group_commit import submit
from shop.sales.quota import take_quota
from shop.sales.stock_lock import commit_under, fence_of, learn_newer_fence, sale_lock
from shop.sales.waiting_slots import waiting_slot

logger = logging.getLogger("shop")

ORDER_COLUMNS = [field for field in Order._meta.concrete_fields if not field.primary_key]
# Raw SQL, because the ORM's own work would cost more than the query.
EARLIER = """
    SELECT id, sale_id, quantity, status, {key} = %s FROM shop_order
    WHERE customer_id = %s AND ({key} = %s OR sale_id = %s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An order, placed by this purchase or by an earlier one with the same key (replayed)."""

    order: Order
    replayed: bool
    status: ClassVar[int] = HTTPStatus.CREATED

    @property
    def url(self) -> str:
        """Path of the order page."""
        return self.order.get_absolute_url()

    @property
    def receipt(self) -> dict[str, Any]:
        """The order as JSON."""
        return self.order.receipt


def place_order(
    *,
    customer: User,
    sale: Sale,
    quantity: int,
    key: str,
    is_first: bool = False,
    began: float | None = None,
) -> Placed:
    """Buy `quantity` units of `sale`, once for each key.

    `sale` comes with its stock. `is_first` is a hint that the customer has no order in this sale:
    if the sale is open, only the unique keys then look for one. `began` is when the request
    arrived (monotonic); all waits together count from it. Raises BadInput, NotOpen, SoldOut,
    LimitReached, KeyReused, and Overloaded or ServiceUnavailable if nothing was decided: the same
    key may then be sent again.
    """
    hashed, began = digest(key), time.monotonic() if began is None else began
    if is_late(began):
        raise ServiceUnavailable
    if not (is_first and _is_sellable(sale, quantity)):
        earlier = _orders_of(customer, sale, hashed)
        if sent := _sent_before(earlier, sale, quantity):
            return sent
        _check(earlier, sale, quantity)
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
            # The same form, or another one of the same customer, was committed first.
            if sent := _sent_before(_orders_of(customer, sale, hashed), sale, quantity):
                return sent
            is_first = not CustomerQuota.objects.filter(customer=customer, sale=sale).exists()
        except OperationalError as error:
            failed = error
            if time.monotonic() >= began + settings.LOCK_TIMEOUT:
                break
            logger.warning("Purchase failed and will be retried: %s", error)
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
    """The columns of a customer's earlier order that a purchase needs."""

    pk: int
    sale_id: int
    quantity: int
    status: str
    is_same: bool
    """True if it was sent with the same key."""


def _orders_of(customer: User, sale: Sale, hashed: str) -> list[Earlier]:
    """Return the customer's orders in this sale, and the order with this key in any sale."""
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


def _is_sellable(sale: Sale, quantity: int) -> bool:
    most = min(sale.limit_per_customer, sale.left)
    return sale.phase() == Sale.Phase.OPEN and 1 <= quantity <= most


def _check(earlier: Sequence[Earlier], sale: Sale, quantity: int) -> None:
    """Refuse a purchase that cannot succeed, before it costs a lock."""
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
    """The INSERT of the order, then the statement for the customer's quota."""
    began: float
    """When the request arrived (monotonic)."""


def _buy(draft: Draft) -> Order:
    order, began = draft.order, draft.began
    sale = order.sale
    try:
        policy.current()  # refresh it here: under the lock every waiter would wait for the read
        if is_late(began):
            raise ServiceUnavailable
        with waiting_slot(sale_id=sale.pk):
            submit(sale_lock(sale, began=began), draft, _write)
    except LockTimeout:
        raise Overloaded from None
    except LockUnavailable as error:
        if order.pk is None:
            raise ServiceUnavailable from error
        logger.warning("Order %s is committed; its lock was not released: %s", order, error)
    except LockLost as error:
        # The order is committed and the row accepted its fence, so the loss is harmless.
        if order.pk is None:
            raise Overloaded from error
        logger.warning("Order %s is committed; its lock was lost: %s", order, error)
    return order


def _write(drafts: Sequence[Draft], lease: Lease) -> None:
    """Write the drafts in one transaction."""
    if is_late(drafts[0].began):  # the leader has waited longest
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
            ids = iter(commit_under(lease, statements))
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
    """Return the order and its statements without those for the stock, before acquiring the lock.

    The contended stock row comes last, so that its row lock is held for the shortest time.
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
    quota = _quota(customer, sale, quantity, is_first=is_first)
    return Draft(order, [insert(Order, **columns), *quota], began)


def _quota(customer: User, sale: Sale, quantity: int, *, is_first: bool) -> list[Statement]:
    if is_first:
        return [insert(CustomerQuota, customer_id=customer.pk, sale_id=sale.pk, taken=quantity)]
    return [take_quota(sale=sale, customer_id=customer.pk, quantity=quantity)]
