"""Scheduled work around a sale. The sale itself opens and ends by the clock alone."""

import logging
from datetime import datetime, timedelta

from django.utils import timezone

from shop.administration.audit import audit_sale
from shop.catalogue.page_cache import get_cached_home, get_cached_sale
from shop.models import Sale

logger = logging.getLogger("shop")

WARM_AHEAD = timedelta(seconds=10)
"""Twice the interval of `open-and-close-sales`: a page that is cached so long before the opening
still serves while the first of many customers reads it again."""


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
