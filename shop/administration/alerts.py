"""Alerts for inconsistent stock (log, metrics, staff pages) and for unwritten orders (metrics)."""

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
"""Time after its end for which a sale is audited here; `manage.py audit_stock` audits all."""

INCONSISTENT = Gauge(
    "shop_inconsistent_sales",
    "Sales that the last audit found oversold or undersold",
    multiprocess_mode="mostrecent",
)
WAITING = Gauge(
    "shop_oldest_reservation_seconds",
    "Seconds for which the oldest reservation had waited for its order at the last audit",
    multiprocess_mode="mostrecent",
)


def audit_and_alert() -> str:
    """Audit the current sales, publish the result, and return it in one line."""
    now = timezone.now()
    sales = Sale.objects.filter(opens_at__lte=now, closes_at__gt=now - AFTER)
    audits = [audit_sale(sale=sale) for sale in sales.order_by("pk")]
    broken = _broken(audits)
    for slug, breaches in broken.items():
        logger.error("Stock of sale %s is inconsistent: %s", slug, "; ".join(breaches))
    caches["optional"].set(KEY, (now, audits), timeout=None)
    return f"{len(audits)} audited, {len(broken)} inconsistent: {', '.join(broken) or '-'}"


def update_metrics() -> None:
    """Set the gauges from the last audit of any process; keep them while the cache is unavailable.

    A process that published only its own audits would repeat an outdated alert forever.
    """
    if found := last_audit():
        _, audits = found
        INCONSISTENT.set(len(_broken(audits)))
        WAITING.set(max((audit.waiting or 0.0 for audit in audits), default=0.0))


def inconsistent_sales() -> Mapping[str, Sequence[str]]:
    """Return the breaches that the last audit found, by sale."""
    found = last_audit()
    return _broken(found[1]) if found else {}


def last_audit() -> tuple[datetime, list[StockAudit]] | None:
    """Return time and result of the last audit; None without one or without the cache."""
    found: tuple[datetime, list[StockAudit]] | None = caches["optional"].get(KEY)
    return found


def _broken(audits: Sequence[StockAudit]) -> dict[str, tuple[str, ...]]:
    return {audit.sale: audit.breaches for audit in audits if not audit.ok}
