"""Purchases through the service."""

from __future__ import annotations

import pytest

from inventory.models import StockMovement
from locking.models import WriteStrategy
from shop.administration.audit import audit_sale
from shop.models import Order, Sale
from shop.purchase.place_order import place_order
from tests.shop.making import a_customer, fresh

EVERY = pytest.mark.parametrize("strategy", WriteStrategy.values)


def buy(sale: Sale, *, customer=None, quantity: int = 1, key: str = "k", **more):
    """Buy, by default as a new customer."""
    return place_order(
        customer=customer or a_customer(), sale=fresh(sale), quantity=quantity, key=key, **more
    )


def nothing_changed(sale: Sale, orders: int = 0) -> bool:
    """Return True if the stock is unchanged and there are this many orders."""
    return (
        Order.objects.filter(sale=sale).count() == orders
        and StockMovement.objects.filter(stock=sale.stock, reason="reserved").count() == orders
        and fresh(sale).stock.quantity == sale.stock.quantity
        and audit_sale(sale=sale).ok
    )
