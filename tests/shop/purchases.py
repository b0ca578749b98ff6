"""Purchases through the service."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import OperationalError

from inventory.models import StockMovement, WriteStrategy
from locking.failpoints import armed
from shop.administration.audit import audit_sale
from shop.models import Order, Sale
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


def nothing_changed(sale: Sale, orders: int = 0) -> bool:
    """Return True if the stock is unchanged and there are this many orders."""
    return (
        Order.objects.filter(sale=sale).count() == orders
        and StockMovement.objects.filter(stock=sale.stock, reason="reserved").count() == orders
        and fresh(sale).stock.quantity == sale.stock.quantity
        and audit_sale(sale=sale).ok
    )
