"""What staff do to a sale, also while it runs."""

import logging

from django.db import transaction
from django.utils import timezone

from inventory import stock
from locking import LockError
from shop.catalogue.page_cache import invalidate
from shop.errors import lock_refusal
from shop.models import Sale
from shop.reservations.reconciliation import reconcile_all
from shop.sales.stock_lock import mark_stock_returning, sale_lock

logger = logging.getLogger("shop")


def restock_sale(*, sale: Sale, quantity: int) -> None:
    """Add units through the ledger. Raises Overloaded or ServiceUnavailable when nothing was done.

    Under the sale's lock: a naive purchase would overwrite what was added between its read and its
    write.
    """
    is_done = False
    mark_stock_returning(slug=sale.slug)
    try:
        with sale_lock(sale):
            with transaction.atomic():
                stock.restock(stock_id=sale.stock_id, quantity=quantity)
            is_done = True
    except LockError as error:
        if not is_done:
            raise lock_refusal(error) from error
        logger.warning("sale %s is restocked, its lock was lost: %s", sale.slug, error)
    if sale.is_queued:
        reconcile_all([sale])


def open_now(*, sale: Sale) -> bool:
    """Open a sale that is to open later; False when it has opened, or is over."""
    now = timezone.now()
    waiting = Sale.objects.filter(pk=sale.pk, opens_at__gt=now, closes_at__gt=now)
    return _changed(waiting.update(opens_at=now))


def close_now(*, sale: Sale) -> bool:
    """End a sale that is open; False when it is not. Orders that were placed stay."""
    now = timezone.now()
    running = Sale.objects.filter(pk=sale.pk, opens_at__lt=now, closes_at__gt=now)
    return _changed(running.update(closes_at=now))


def _changed(rows: int) -> bool:
    if rows:
        invalidate()
    return bool(rows)
