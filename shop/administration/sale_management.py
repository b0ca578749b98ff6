"""Restock, open and close a sale, also while customers buy; scheduled work around a sale.

A sale opens and ends by the clock alone.
"""

import logging
from datetime import datetime, timedelta

from django.utils import timezone

from inventory import stock
from shop.administration.audit import audit_sale
from shop.catalogue.page_cache import get_cached_home, get_cached_sale, invalidate
from shop.models import Sale
from shop.reservations.reconciliation import reconcile_all
from shop.sales.stock_lock import returning_stock

logger = logging.getLogger("shop")

WARM_AHEAD = timedelta(seconds=10)
"""Twice the interval of `open-and-close-sales`: a page that is cached so long before the opening
still serves while the first of many customers reads it again."""


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


def open_and_close_sales(*, since: datetime, until: datetime) -> str:
    """Log the sales that opened or ended after `since`, and cache the pages of the next ones."""
    now = timezone.now()
    warm = Sale.objects.filter(opens_at__gt=now, opens_at__lte=now + WARM_AHEAD)
    slugs = list(warm.filter(product__is_listed=True).values_list("slug", flat=True))
    for slug in slugs:
        get_cached_sale(slug=slug)
    if slugs:
        get_cached_home()
    opened = list(Sale.objects.filter(opens_at__gt=since, opens_at__lte=until))
    for sale in opened:
        logger.info("Sale %s is open with %d units", sale.slug, sale.left)
    closed = list(Sale.objects.filter(closes_at__gt=since, closes_at__lte=until))
    for sale in closed:
        audit = audit_sale(sale=sale)
        logger.info("Sale %s has ended: %d of %d sold", sale.slug, audit.sold, audit.initial)
    return f"warmed {len(slugs)}, opened {len(opened)}, closed {len(closed)}"
