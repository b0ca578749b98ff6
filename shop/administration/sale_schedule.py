"""What happens by the clock around a sale; the sale itself needs nobody to open it."""

import logging
from datetime import datetime, timedelta

from django.utils import timezone

from shop.administration.audit import audit_sale
from shop.catalogue.page_cache import get_cached_home, get_cached_sale
from shop.models import Sale

logger = logging.getLogger("shop")

WARM_AHEAD = timedelta(seconds=10)
"""Twice the schedule of `open-and-close-sales`: what is read so long before the opening is still
shown while the crowd's first one reads anew."""


def open_and_close_sales(*, since: datetime, until: datetime) -> str:
    """Announce the sales that opened or ended after `since`, and warm the pages of the next."""
    now = timezone.now()
    warm = Sale.objects.filter(opens_at__gt=now, opens_at__lte=now + WARM_AHEAD)
    slugs = list(warm.filter(product__is_listed=True).values_list("slug", flat=True))
    for slug in slugs:
        get_cached_sale(slug=slug)
    if slugs:
        get_cached_home()
    opened = list(Sale.objects.filter(opens_at__gt=since, opens_at__lte=until))
    for sale in opened:
        logger.info("sale %s is open: %d pieces", sale.slug, sale.left)
    closed = list(Sale.objects.filter(closes_at__gt=since, closes_at__lte=until))
    for sale in closed:
        books = audit_sale(sale=sale)
        logger.info("sale %s is over: %d of %d sold", sale.slug, books.sold, books.initial)
    return f"warmed {len(slugs)}, opened {len(opened)}, closed {len(closed)}"
