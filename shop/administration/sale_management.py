"""Correct, open, close and unlist a sale, change its stock, and delete its quotas in the end.

A sale opens and ends by the clock alone.
"""

import logging
from contextlib import suppress
from datetime import timedelta

from django.db import Error, transaction
from django.db.models import Exists, OuterRef
from django.utils import timezone

from inventory import stock
from inventory.exceptions import OutOfStock
from shop.catalogue.page_cache import invalidate
from shop.mail.service import remind_again
from shop.models import CustomerQuota, Order, Sale
from shop.reservations import store
from shop.reservations.reconciliation import reconcile_all
from shop.sales.stock_lock import returning_stock

logger = logging.getLogger("shop")

FIXED = {"price": timedelta(minutes=1), "opens_at": timedelta()}
"""How long before the opening a field is fixed; an open page shows a new price within a minute."""
CANCELLED = timedelta(seconds=1)
"""Time within which all processes know that a sale is cancelled; their clocks may differ, too."""
KEPT_FOR = timedelta(days=7)
"""Time after the end of a sale for which its quotas are kept, and staff can give it a later end."""
MARGIN = timedelta(hours=1)
"""Further time, in which a later end that was given just before is committed."""
BATCH = 5000
"""Quotas that one transaction deletes."""


def restock_sale(*, sale: Sale, quantity: int) -> bool:
    """Add units through the ledger; a negative quantity removes unsold ones.

    Return False if fewer are unsold. Raise Overloaded or ServiceUnavailable if nothing was done.
    """
    is_done = False
    with suppress(OutOfStock), returning_stock(sale):
        if quantity < 0 and sale.is_queued:
            # Before anyone can reserve them; if the commit fails, the comparison gives them back.
            sale.refresh_from_db(fields=["generation"])
            store.take(sale=sale, units=-quantity)
        stock.commit(stock.restock(stock_id=sale.stock_id, quantity=quantity))
        is_done = True
    invalidate()
    if sale.is_queued:
        try:
            reconcile_all([sale])
        except Error as error:  # the units are added: the scheduled comparison tells Redis
            logger.warning("Redis does not know the stock of sale %s yet: %r", sale.slug, error)
    return is_done


def fixed_fields(*, sale: Sale, keep: bool = False) -> set[str]:
    """Return the fields of a sale that can no longer change.

    With `keep`, its row is locked until the COMMIT of the transaction that changes them: the sale
    cannot open in between.
    """
    rows = Sale.objects.select_for_update() if keep else Sale.objects.all()
    found = rows.values_list("opens_at", "closes_at", "is_listed")
    opens_at, closes_at, is_listed = found.get(pk=sale.pk)
    has_orders = Order.objects.filter(sale=sale).exists()
    now = timezone.now()
    fixed = {name for name, ahead in FIXED.items() if has_orders or opens_at <= now + ahead}
    # The units of a shipped order that was refunded after the end must not be sold again.
    shipped = Order.objects.filter(sale=sale, address__shipped_at__isnull=False)
    is_over = not is_listed or closes_at <= now - KEPT_FOR
    if is_over or shipped.filter(status=Order.Status.REFUNDED).exists():
        fixed.add("closes_at")
    return fixed


def open_now(*, sale: Sale) -> bool:
    """Open an upcoming sale; return False if it has opened or ended already."""
    now = timezone.now()
    waiting = Sale.objects.filter(pk=sale.pk, opens_at__gt=now, closes_at__gt=now)
    with transaction.atomic():
        if is_opened := waiting.update(opens_at=now):
            sale.opens_at = now
            remind_again(sale=sale)
    return _changed(is_opened)


def close_now(*, sale: Sale) -> bool:
    """End an open sale and keep its orders; return False if the sale is not open."""
    now = timezone.now()
    running = Sale.objects.filter(pk=sale.pk, opens_at__lt=now, closes_at__gt=now)
    return _changed(running.update(closes_at=now))


def unlist(*, sale: Sale) -> bool:
    """Unlist an upcoming or ended sale; return False if it is open, or about to open.

    An upcoming sale then counts as ended and never opens. Only its address leads to its page.
    """
    now, rows = timezone.now(), Sale.objects.filter(pk=sale.pk)
    over = {"opens_at": now - CANCELLED, "closes_at": now}
    return _changed(
        rows.filter(opens_at__gt=now + CANCELLED).update(is_listed=False, **over)
        or rows.filter(closes_at__lte=now).update(is_listed=False)
    )


def _changed(rows: int) -> bool:
    if rows:
        invalidate()
    return bool(rows)


def prune_quotas() -> int:
    """Delete the quotas of sales that can neither sell nor get units back; return their number."""
    unpaid = Order.objects.filter(sale=OuterRef("sale"), status=Order.Status.PENDING)
    over = timezone.now() - KEPT_FOR - MARGIN
    quotas = CustomerQuota.objects.filter(~Exists(unpaid), sale__closes_at__lt=over)
    deleted = 0
    while batch := list(quotas.values_list("pk", flat=True)[:BATCH]):
        deleted += CustomerQuota.objects.filter(pk__in=batch).delete()[0]
    return deleted
