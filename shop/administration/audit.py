"""Audit sales: initial = available + held + sold, in the orders, the stock row and the ledger.

The verdict of every load test and of `manage.py audit_stock`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction

from inventory.queries import ledger_of
from shop.errors import ServiceUnavailable
from shop.models import Order, Sale
from shop.reservations import store


@dataclass(frozen=True, slots=True, kw_only=True)
class StockAudit:
    """The units of one sale."""

    sale: str
    initial: int
    available: int
    held: int
    sold: int
    oversold: int
    """Units promised beyond the initial stock."""
    lost: int
    """Units neither available nor promised."""
    stale_writes_refused: int
    breaches: tuple[str, ...]
    reserved: int | None = None
    """Units of a queued sale whose order is not written yet; None if Redis is unavailable."""
    waiting: float | None = None
    """Seconds for which the oldest of these reservations has waited, by Redis's clock and ours."""
    drift: int | None = None
    """Units that Redis offers beyond those available and not reserved. Redis and database are read
    at different moments: only a lasting drift is real, and `manage.py reconcile_queued` ends it."""

    @property
    def ok(self) -> bool:
        """Return True if the sale is consistent."""
        return not self.breaches


def audit_sale(*, sale: Sale) -> StockAudit:
    """Compare the orders of a sale with its stock row and the ledger."""
    with _snapshot():
        ledger = ledger_of(stock_id=sale.stock_id)
        orders = _live_orders(sale)
    held = sum(quantity for _, quantity, status in orders if status == Order.Status.PENDING)
    sold = sum(quantity for _, quantity, status in orders if status == Order.Status.PAID)
    promised = held + sold
    breaches = []
    if promised > ledger.stocked:
        breaches.append(f"oversold: {promised} promised of {ledger.stocked}")
    if promised + ledger.available != ledger.stocked:
        breaches.append(
            f"{ledger.stocked} initial != {ledger.available} available + {held} held + {sold} sold"
        )
    left = ledger.stocked - ledger.out
    if left != ledger.available:
        breaches.append(f"the ledger leaves {left}, the row says {ledger.available}")
    live = {number: quantity for number, quantity, _ in orders}
    wrong = sorted(
        number
        for number in live.keys() | ledger.per_order.keys()
        if live.get(number, 0) != ledger.per_order.get(number, 0)
    )
    if wrong:
        breaches.append(f"orders that the ledger tells otherwise: {', '.join(wrong[:5])}")
    return StockAudit(
        sale=sale.slug,
        initial=ledger.stocked,
        available=ledger.available,
        held=held,
        sold=sold,
        oversold=max(0, promised - ledger.stocked),
        lost=max(0, ledger.stocked - promised - ledger.available),
        stale_writes_refused=ledger.stale_writes_refused,
        breaches=tuple(breaches),
        **_in_redis(sale, ledger.available),
    )


@contextmanager
def _snapshot() -> Iterator[None]:
    """Read everything as of one moment.

    Purchases do not wait for it, although counting a large sale takes a second; on SQLite they do,
    because it runs one transaction at a time.
    """
    is_outermost = not connection.in_atomic_block
    with transaction.atomic():
        if is_outermost and connection.vendor == "mysql":
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield


def _in_redis(sale: Sale, available: int) -> dict[str, Any]:
    if sale.is_queued:
        with suppress(ServiceUnavailable):
            state = store.read_state(sale=sale)
            units = None if state is None else state.stock
            return {
                "reserved": state.queued if state else 0,
                "waiting": store.oldest_age(sale=sale),
                "drift": None if units is None else units - available,
            }
    return {}


def _live_orders(sale: Sale) -> list[tuple[str, int, str]]:
    live = Order.objects.filter(sale=sale, status__in=Order.LIVE)
    return list(live.values_list("number", "quantity", "status"))


def audit_all() -> Iterable[StockAudit]:
    """Yield the audit of every sale, oldest first."""
    return (audit_sale(sale=sale) for sale in Sale.objects.order_by("pk"))
