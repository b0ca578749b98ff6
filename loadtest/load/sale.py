"""The sale of an experiment."""

from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.utils import timezone

from devservers.faults.waiting import FaultFailed, until
from inventory.models import Product, Stock, StockMovement
from shop.models import CustomerQuota, Order, Payment, RejectedReservation, Sale
from shop.reservations import store
from shop.sales.queries import create_sale

OPEN_FOR = timedelta(days=1)
WRITE_TIMEOUT = 60.0


def open_sale(
    slug: str, stock: int, *, open_for: timedelta = OPEN_FOR, product: str = "lab", **options: Any
) -> Sale:
    """Create a sale that is open now; `options` are further arguments of `create_sale`."""
    now = timezone.now()
    row, _ = Product.objects.get_or_create(
        slug=product, defaults={"name": "Load test", "price": Decimal(1)}
    )
    return create_sale(
        product=row,
        slug=slug,
        price=row.price,
        quantity=stock,
        opens_at=now - timedelta(seconds=1),
        closes_at=now + open_for,
        **options,
    )


def remove_sale(sale: Sale) -> None:
    """Delete a sale with its orders, its ledger and its product, unless that has another sale."""
    if sale.is_queued:
        sale.refresh_from_db(fields=["generation"])
        store.delete(sale=sale)
    with transaction.atomic():
        Payment.objects.filter(order__sale=sale).delete()
        for model in (Order, RejectedReservation, CustomerQuota):
            model.objects.filter(sale=sale).delete()
        StockMovement.objects.filter(stock=sale.stock_id).delete()
        Sale.objects.filter(pk=sale.pk).delete()
        Stock.objects.filter(pk=sale.stock_id).delete()
        Product.objects.filter(pk=sale.product_id, sales=None).delete()


def wait_for_orders(sale: Sale, number: int) -> None:
    """Wait until so many orders of a queued sale are written, a minute at most."""
    orders = Order.objects.filter(sale=sale)
    with suppress(FaultFailed):
        until(lambda: orders.count() >= number, "the orders", WRITE_TIMEOUT)
