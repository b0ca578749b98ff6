"""Purchases through the service."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import OperationalError
from django.utils import timezone

from inventory.models import StockMovement, WriteStrategy
from locking.failpoints import armed
from shop.administration.audit import audit_sale
from shop.models import Order, Sale
from shop.orders.service import expire_unpaid_orders
from shop.purchase.place_order import place_order
from shop.sales.purchase_request import PurchaseRequest
from tests.shop.making import a_customer, fresh

LOST = OperationalError(2013, "Lost connection to server during query")
EVERY = pytest.mark.parametrize("strategy", WriteStrategy.values)


def buy(sale: Sale, *, customer=None, quantity: int = 1, key: str = "k", **more):
    """Buy, by default as a new customer."""
    customer_id = (customer or a_customer()).pk
    return place_order(PurchaseRequest(customer_id, fresh(sale), quantity, key, **more))


@contextmanager
def armed_once(point: str, act: Callable[[], object]) -> Iterator[None]:
    """Act at the first arrival at a fail point, which must occur."""
    arrivals = []

    def arrive() -> None:
        arrivals.append(point)
        if len(arrivals) == 1:
            act()

    with armed(point, arrive):
        yield
    assert arrivals


def expire_the_pending_order() -> None:
    Order.objects.update(pay_by=timezone.now() - timedelta(seconds=1))
    assert expire_unpaid_orders() == 1


def nothing_changed(sale: Sale, orders: int = 0) -> bool:
    """Return True if the stock is unchanged and there are this many orders."""
    return (
        Order.objects.filter(sale=sale).count() == orders
        and StockMovement.objects.filter(stock=sale.stock, reason="reserved").count() == orders
        and fresh(sale).stock.quantity == sale.stock.quantity
        and audit_sale(sale=sale).ok
    )
