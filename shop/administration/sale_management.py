"""Restock, open and close a sale, also while customers buy.

A sale opens and ends by the clock alone.
"""

from django.utils import timezone

from inventory import stock
from shop.catalogue.page_cache import invalidate
from shop.models import Sale
from shop.reservations.reconciliation import reconcile_all
from shop.sales.stock_lock import returning_stock


def restock_sale(*, sale: Sale, quantity: int) -> None:
    """Add units through the ledger. Raise Overloaded or ServiceUnavailable if nothing was done."""
    with returning_stock(sale):
        stock.commit(stock.restock(stock_id=sale.stock_id, quantity=quantity))
    invalidate()
    if sale.is_queued:
        reconcile_all([sale])


def open_now(*, sale: Sale) -> bool:
    """Open an upcoming sale; return False if it has opened or ended already."""
    now = timezone.now()
    waiting = Sale.objects.filter(pk=sale.pk, opens_at__gt=now, closes_at__gt=now)
    return _changed(waiting.update(opens_at=now))


def close_now(*, sale: Sale) -> bool:
    """End an open sale and keep its orders; return False if the sale is not open."""
    now = timezone.now()
    running = Sale.objects.filter(pk=sale.pk, opens_at__lt=now, closes_at__gt=now)
    return _changed(running.update(closes_at=now))


def _changed(rows: int) -> bool:
    if rows:
        invalidate()
    return bool(rows)
