"""Alerts: inconsistent stock, unwritten orders, late refunds, a full Redis and a wrong clock.

The web process that exports the metrics measures all but the first: an alert must not depend on the
worker whose end it reports.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from django.core.cache import cache
from django.db import DatabaseError, connection
from django.utils import timezone
from prometheus_client import Gauge
from redis.exceptions import RedisError

from locking import LockError, locks, policy
from shop.administration.audit import Breach, StockAudit, audit_sale
from shop.errors import ServiceUnavailable
from shop.models import Sale
from shop.payments.service import oldest_refund_seconds
from shop.reservations import store
from shop.reservations.reconciliation import sales_under_way

logger = logging.getLogger("shop")

KEY = "stock-audits"
AFTER = timedelta(days=1)
"""Time after its end for which a sale is audited here; `manage.py audit_stock` audits all."""

_gauge = partial(Gauge, multiprocess_mode="mostrecent")
INCONSISTENT = _gauge(
    "shop_inconsistent_sales", "Sales that the last audit found oversold or undersold"
)
WAITING = _gauge(
    "shop_oldest_reservation_seconds",
    "Seconds for which the oldest reservation has waited for its order",
)
REFUND = _gauge(
    "shop_oldest_refund_seconds",
    "Seconds for which the oldest refund has waited for the payment provider",
)
NODES = _gauge(
    "shop_lock_nodes_down",
    "Servers of the active lock that do not respond, while the others keep it available",
)
MEMORY = _gauge(
    "shop_redis_memory_ratio",
    "Used part of the memory limit of the Redis that does not evict (REDIS_URL)",
)
CLOCK = _gauge(
    "shop_clock_difference_seconds",
    "Clock of the database minus the clock of the web process, by which sales open",
)

CLOCK_NOW = {
    # Not UNIX_TIMESTAMP(NOW(6)), which the hour after daylight saving time makes ambiguous.
    "mysql": "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6",
    "postgresql": "SELECT EXTRACT(EPOCH FROM clock_timestamp())",
}


def audit_stock() -> str:
    """Audit the current sales, publish the result, and return it in one line."""
    now = timezone.now()
    sales = Sale.objects.filter(opens_at__lte=now, closes_at__gt=now - AFTER)
    audits = [audit_sale(sale=sale) for sale in sales.order_by("pk")]
    broken = _broken(audits)
    for slug, breaches in broken.items():
        logger.error("Stock of sale %s is inconsistent: %s", slug, "; ".join(breaches))
    with suppress(RedisError):
        cache.set(KEY, (now, audits), timeout=None)
    return f"{len(audits)} audited, {len(broken)} inconsistent: {', '.join(broken) or '-'}"


def update_metrics() -> None:
    """Set the gauges from the last audit of any process, and measure the others.

    Each gauge keeps its value while its store is unavailable. The waits are those of the clients
    of Redis and the database, a few seconds at most.
    """
    if found := last_audit():
        INCONSISTENT.set(len(_broken(found[1])))
    for gauge, measure in (
        (WAITING, _oldest_reservation),
        (REFUND, oldest_refund_seconds),
        (NODES, lambda: len(locks[policy.current().backend].backend.nodes_down())),
        (MEMORY, store.memory_ratio),
        (CLOCK, _clock_difference),
    ):
        with suppress(ServiceUnavailable, LockError, DatabaseError):
            gauge.set(measure())


def _oldest_reservation() -> float:
    """Return the age in seconds of the oldest reservation without an order; 0 without any."""
    return max((store.oldest_age(sale=sale) for sale in sales_under_way()), default=0.0)


def _clock_difference() -> float:
    """Return the seconds by which the database's clock is ahead of this machine's."""
    if connection.vendor not in CLOCK_NOW:
        return 0.0  # a file of this machine
    with connection.cursor() as cursor:
        began = time.time()
        cursor.execute(CLOCK_NOW[connection.vendor])
        (there,) = cursor.fetchone()
    return float(there) - (began + time.time()) / 2


def inconsistent_sales() -> Mapping[str, Sequence[Breach]]:
    """Return the breaches that the last audit found, by sale."""
    found = last_audit()
    return _broken(found[1]) if found else {}


def last_audit() -> tuple[datetime, list[StockAudit]] | None:
    """Return time and result of the last audit; None without one or without the cache."""
    with suppress(RedisError):
        found: tuple[datetime, list[StockAudit]] | None = cache.get(KEY)
        return found
    return None


def _broken(audits: Sequence[StockAudit]) -> dict[str, tuple[Breach, ...]]:
    return {audit.sale: audit.breaches for audit in audits if not audit.ok}
