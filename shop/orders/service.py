"""The life of an order after it was placed.

    pending -> paid
    pending -> cancelled | expired      and its units are released, exactly once

Each transition is one conditional UPDATE: the transaction that changes the row from pending wins,
every other one raises InvalidTransition.
"""

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from django.conf import settings
from django.db import DatabaseError
from django.db.models import QuerySet
from django.utils import timezone

from inventory import stock
from inventory.statements import Statement, as_stored
from inventory.stock import commit
from shop.errors import InvalidTransition, NotFound, Overloaded, ServiceUnavailable
from shop.models import Order, Sale, User
from shop.reservations import store
from shop.sales.purchase_request import return_quota
from shop.sales.stock_lock import return_stock

logger = logging.getLogger("shop")

Status = Order.Status


def orders_of(*, customer: User) -> QuerySet[Order]:
    """Return a customer's orders, newest first."""
    return Order.objects.filter(customer=customer).select_related("sale__product", "sale__stock")


def get_order(*, customer: User, number: str) -> Order:
    """Return one of the customer's orders; NotFound also for the orders of others."""
    order = orders_of(customer=customer).filter(number=number).first()
    if order is None:
        raise NotFound
    return order


def live_orders(*, customer: User, sale: Sale) -> list[Order]:
    """Return the customer's pending and paid orders in a sale, newest first."""
    return list(Order.objects.filter(customer=customer, sale=sale, status__in=Order.LIVE))


def next_deadline(*, customer: User) -> datetime | None:
    """Return the earliest end of the time to pay of the customer's unpaid orders."""
    unpaid = Order.objects.filter(customer=customer, status=Status.PENDING)
    deadlines = unpaid.filter(pay_by__gt=timezone.now()).order_by("pay_by")
    return deadlines.values_list("pay_by", flat=True).first()


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
    _close(order, Status.CANCELLED, also)


def expire_unpaid_orders(*, now: datetime | None = None, limit: int = 500) -> int:
    """Expire pending orders whose time to pay is over, and return how many.

    At most `limit` orders of each sale, so that a sale whose stock cannot be written does not delay
    the others.
    """
    due = Order.objects.filter(status=Status.PENDING, pay_by__lte=now or timezone.now())
    sales = Sale.objects.filter(pk__in=due.values("sale"))
    return sum(_expire(sale, due.filter(sale=sale).order_by("pay_by")[:limit]) for sale in sales)


def _expire(sale: Sale, due: QuerySet[Order]) -> int:
    closed = failed = 0
    for order in due:
        order.sale = sale
        try:
            _close(order, Status.EXPIRED)
        except InvalidTransition:
            continue  # paid or cancelled since the query
        except (Overloaded, DatabaseError) as error:
            logger.warning("Expiring order %s failed, retrying later: %s", order.number, error)
            failed += 1
            if failed == settings.MAX_ATTEMPTS:
                break
            continue
        closed += 1
    return closed


def _close(order: Order, status: Status, also: Sequence[Statement] = ()) -> None:
    statements = partial(_end, order, status, also)
    return_stock(order.sale, statements, then=partial(_release_in_redis, order))
    order.refresh_from_db(fields=["status", "closed_at"])


def _release_in_redis(order: Order) -> None:
    """Release the units of a queued sale in Redis; if that fails, reconciliation does it later."""
    if order.sale.is_queued:
        try:
            store.release(order=order)
        except ServiceUnavailable as error:
            logger.warning("Returning units of order %s to Redis failed: %s", order.number, error)


def _end(
    order: Order, status: Status, also: Sequence[Statement], fence: stock.Fence
) -> list[Statement]:
    """Return the statements of one transaction: close a pending order and return its units."""
    return [
        Statement(
            "UPDATE shop_order SET status = %s, closed_at = %s WHERE id = %s AND status = %s",
            [status, as_stored(Order, "closed_at", timezone.now()), order.pk, Status.PENDING],
            if_unchanged=InvalidTransition,
        ),
        *also,
        return_quota(sale_id=order.sale_id, customer_id=order.customer_id, quantity=order.quantity),
        *stock.release(
            stock_id=order.sale.stock_id,
            quantity=order.quantity,
            order_number=order.number,
            fence=fence,
        ),
    ]
