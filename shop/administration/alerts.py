"""The alarm for books that do not add up: in the log, in the metrics and on every page of staff;
and for reservations that nobody makes orders of, in the metrics."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.core.cache import caches
from django.utils import timezone
from prometheus_client import Gauge

from shop.administration.audit import StockAudit, audit_sale
from shop.models import Sale

logger = logging.getLogger("shop")

KEY = "audits"
AFTER = timedelta(days=1)
"""How long after its end a sale is still audited here; `manage.py audit_stock` audits all."""

BROKEN = Gauge(
    "shop_sales_not_adding_up",
    "Sales that the last audit found oversold or undersold",
    multiprocess_mode="mostrecent",
)
WAITING = Gauge(
    "shop_queued_waiting_seconds",
    "How long the oldest reservation had waited for its order at the last audit",
    multiprocess_mode="mostrecent",
)


def audit_and_alert() -> str:
    """Audit the sales under way; raise the alarm or end it. The result in one line."""
    now = timezone.now()
    sales = Sale.objects.filter(opens_at__lte=now, closes_at__gt=now - AFTER)
    audits = [audit_sale(sale=sale) for sale in sales.order_by("pk")]
    broken = _broken(audits)
    for slug, breaches in broken.items():
        logger.error("the stock of sale %s does not add up: %s", slug, "; ".join(breaches))
    caches["optional"].set(KEY, (now, audits), timeout=None)
    return f"{len(audits)} audited, {len(broken)} do not add up: {', '.join(broken) or '-'}"


def tell_metrics() -> None:
    """What the last audit found, whichever process made it: one that keeps its own finding would
    raise the alarm for ever. While the cache is silent, what was known stays."""
    if found := books():
        _, audits = found
        BROKEN.set(len(_broken(audits)))
        WAITING.set(max((audit.waiting or 0.0 for audit in audits), default=0.0))


def current() -> Mapping[str, Sequence[str]]:
    """What the last audit found wrong, by sale."""
    found = books()
    return _broken(found[1]) if found else {}


def books() -> tuple[datetime, list[StockAudit]] | None:
    """The last audit and when it was; None where there was none, or the cache is silent."""
    found: tuple[datetime, list[StockAudit]] | None = caches["optional"].get(KEY)
    return found


def _broken(audits: Sequence[StockAudit]) -> dict[str, tuple[str, ...]]:
    return {audit.sale: audit.breaches for audit in audits if not audit.ok}
