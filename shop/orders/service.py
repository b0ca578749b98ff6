"""The life of an order after it was placed.

    pending -> paid
    pending -> cancelled | expired      and its units are released, exactly once
    paid -> refunded                    and its units are released, exactly once

Each transition is one conditional UPDATE: the transaction that changes the row wins, every other
one raises InvalidTransition.
"""

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime

from django.conf import settings
from django.db import Error, IntegrityError
from django.db.models import QuerySet
from django.utils import timezone

from inventory import stock
from inventory.exceptions import StaleFence
from inventory.statements import Statement, as_stored
from inventory.stock import commit
from shop.errors import InvalidTransition, NotFound, Overloaded, ServiceUnavailable
from shop.models import CustomerQuota, Order, Sale, User
from shop.reservations import store
from shop.sales.purchase_request import return_quotas, unpaid
from shop.sales.stock_lock import fence_of, learn_newer_fence, returning_stock

logger = logging.getLogger("shop")

Status = Order.Status
# Every page of a customer reads these: Django takes five times as long to compose the statement.
UNPAID_ORDERS = "SELECT id, status, pay_by FROM shop_order WHERE customer_id = %s AND status = %s"
LIVE_ORDERS = (
    "SELECT id, number, sale_id, quantity, status, pay_by FROM shop_order"
    " WHERE customer_id = %s AND (status = %s OR sale_id = %s) ORDER BY id DESC"
)
BATCH = 100
"""Orders that one transaction expires, while purchases wait."""


def orders_of(*, customer: User) -> QuerySet[Order]:
    """Return a customer's orders, newest first."""
    orders = Order.objects.filter(customer=customer)
    return orders.select_related("address", "sale__product", "sale__stock")


def get_order(*, customer: User, number: str) -> Order:
    """Return one of the customer's orders; NotFound also for the orders of others."""
    order = orders_of(customer=customer).filter(number=number).first()
    if order is None:
        raise NotFound
    order.customer = customer  # its page need not read them again
    return order


def live_orders(*, customer: User, sale: Sale) -> tuple[list[Order], datetime | None]:
    """Return the customer's pending and paid orders in a sale, newest first, and `next_deadline`.

    A page needs both, for the price of one query.
    """
    found = list(Order.objects.raw(LIVE_ORDERS, [customer.pk, Status.PENDING, sale.pk]))
    live = [one for one in found if one.sale_id == sale.pk and one.status in Order.LIVE]
    return live, _earliest_deadline(found)


def next_deadline(*, customer: User) -> datetime | None:
    """Return the earliest end of the time to pay of the customer's unpaid orders."""
    return _earliest_deadline(Order.objects.raw(UNPAID_ORDERS, [customer.pk, Status.PENDING]))


def _earliest_deadline(orders: Iterable[Order]) -> datetime | None:
    now = timezone.now()
    unpaid = (one.pay_by for one in orders if one.status == Status.PENDING and one.pay_by > now)
    return min(unpaid, default=None)


def pay_order(*, order: Order, also: Sequence[Statement] = ()) -> None:
    """Mark a pending order as paid, and write `also` in the same transaction.

    Raises InvalidTransition if the order is no longer pending or its time to pay is over.
    """
    now = as_stored(Order, "closed_at", timezone.now())
    commit(
        [
            Statement(
                "UPDATE shop_order SET status = %s, closed_at = %s"
                " WHERE id = %s AND status = %s AND pay_by > %s",
                [Status.PAID, now, order.pk, Status.PENDING, now],
                if_unchanged=InvalidTransition,
            ),
            *also,
        ]
    )
    order.refresh_from_db(fields=["status", "closed_at"])


def cancel_order(*, order: Order, also: Sequence[Statement] = ()) -> None:
    """Cancel a pending order, release its units, and write `also` in the same transaction.

    Raises InvalidTransition if the order is no longer pending, and Overloaded or
    ServiceUnavailable if nothing was decided.
    """
    _close(order.sale, [order], Status.CANCELLED, also)
    order.refresh_from_db(fields=["status", "closed_at"])


def refund_order(*, order: Order, also: Sequence[Statement] = ()) -> None:
    """Cancel a paid order, release its units, and write `also` in the same transaction.

    Raises the errors of `cancel_order`. After the end of the sale the units stay unsold.
    """
    _close(order.sale, [order], Status.REFUNDED, also, since=Status.PAID)
    order.refresh_from_db(fields=["status", "closed_at"])


def expire_unpaid_orders(*, now: datetime | None = None, limit: int = 5000) -> int:
    """Expire pending orders whose time to pay is over, and return how many.

    At most `limit` orders of each sale, so that a sale whose stock cannot be written does not delay
    the others.
    """
    due = Order.objects.filter(status=Status.PENDING, pay_by__lte=now or timezone.now())
    sales = Sale.objects.filter(pk__in=due.values("sale"))
    return sum(_expire(sale, due.filter(sale=sale).order_by("pay_by")[:limit]) for sale in sales)


def _expire(sale: Sale, due: QuerySet[Order]) -> int:
    """Expire the orders in batches; those of a batch that fails are then tried one by one."""
    waiting = list(due.values_list("pk", flat=True))
    batches = [waiting[at : at + BATCH] for at in range(0, len(waiting), BATCH)]
    closed = failed = 0
    while batches and failed < settings.MAX_ATTEMPTS:
        batch = batches.pop(0)
        # Read under the lock: from then on, only a payment can still change one of them.
        orders = Order.objects.filter(pk__in=batch, status=Status.PENDING)
        try:
            closed += _close(sale, orders, Status.EXPIRED)
            failed = 0
        except (InvalidTransition, Overloaded, Error) as error:
            logger.warning("Expiring %d orders of sale %s failed: %r", len(batch), sale.slug, error)
            if len(batch) > 1:
                batches[:0] = [[pk] for pk in batch]
            elif not isinstance(error, InvalidTransition | IntegrityError):  # they take no time
                failed += 1
    return closed


def _close(
    sale: Sale,
    which: Iterable[Order],
    status: Status,
    also: Sequence[Statement] = (),
    since: Status = Status.PENDING,
) -> int:
    """Close orders and return their units, in one transaction; return their number.

    Raise InvalidTransition if the status of one of them is no longer `since`.
    """
    for _ in range(settings.MAX_ATTEMPTS):
        try:
            with returning_stock(sale) as lease:
                if orders := list(which):
                    units = [(order.number, order.quantity) for order in orders]
                    returned = stock.release(
                        stock_id=sale.stock_id, orders=units, fence=fence_of(lease)
                    )
                    are_expired = status == Status.EXPIRED
                    quotas = return_quotas(sale_id=sale.pk, orders=orders, are_expired=are_expired)
                    commit([_end(orders, status, since), *also, quotas, *returned])
                    if sale.is_queued:
                        _release_in_redis(sale, orders)
                return len(orders)
        except StaleFence:
            learn_newer_fence(sale)
    raise Overloaded


def _end(orders: Sequence[Order], status: Status, since: Status) -> Statement:
    """Return the UPDATE that has to change every one of the orders from `since`."""
    now, ids = as_stored(Order, "closed_at", timezone.now()), [order.pk for order in orders]
    update = "UPDATE shop_order SET status = %s, closed_at = %s WHERE status = %s AND id IN "
    return Statement(
        f"{update}({', '.join(['%s'] * len(ids))})",
        [status, now, since, *ids],
        if_unchanged=InvalidTransition,
        rows=len(ids),
    )


def _release_in_redis(sale: Sale, orders: Sequence[Order]) -> None:
    """Release the units of a queued sale in Redis; if that fails, reconciliation does it later."""
    try:
        quotas = CustomerQuota.objects.filter(customer__in=[one.customer_id for one in orders])
        blocked = set(unpaid(quotas, sale_id=sale.pk).values_list("customer_id", flat=True))
        sale.refresh_from_db(fields=["generation"])  # read before the lock was obtained
        for order in orders:
            order.sale = sale
            store.release(order=order, is_blocked=order.customer_id in blocked)
    except (ServiceUnavailable, Error) as error:
        logger.warning("Returning units of sale %s to Redis failed: %s", sale.slug, error)
