"""Audit sales: initial = available + held + sold, in the orders, the stock row and the ledger.

The verdict of every load test and of `manage.py audit_stock`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from django.db import connection, transaction
from django.utils.translation import gettext, gettext_noop

from inventory.queries import Ledger, ledger_of
from shop.errors import ServiceUnavailable
from shop.models import Order, Sale
from shop.reservations import store


class Breach(str):
    """An inconsistency, in English for logs and JSON."""

    text: str
    values: dict[str, object]

    def __new__(cls, text: str, **values: object) -> Self:
        """Put the values into the text."""
        breach = super().__new__(cls, text % values)
        breach.text, breach.values = text, values
        return breach

    @property
    def shown(self) -> str:
        """The breach in the reader's language."""
        return gettext(self.text) % self.values


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
    breaches: tuple[Breach, ...]
    reserved: int | None = None
    """Units of a queued sale whose order is not written yet; None if Redis is unavailable."""
    waiting: float | None = None
    """Seconds for which the oldest of these reservations has waited, by Redis's clock and ours."""
    drift: int | None = None
    """Units that Redis offers beyond those available and not reserved. Redis and database are read
    at different moments: only a lasting drift is real, and `manage.py reconcile_queued` ends it.
    None if the sale is not loaded, or Redis is unavailable."""

    @property
    def ok(self) -> bool:
        """Return True if the sale is consistent."""
        return not self.breaches


def audit_sale(*, sale: Sale) -> StockAudit:
    """Compare the orders of a sale with its stock row and the ledger."""
    with _snapshot():
        ledger = ledger_of(stock_id=sale.stock_id)
        live = Order.objects.filter(sale=sale, status__in=Order.LIVE)
        orders = list(live.order_by().values_list("number", "quantity", "status"))
    held = sum(quantity for _, quantity, status in orders if status == Order.Status.PENDING)
    sold = sum(quantity for _, quantity, _ in orders) - held
    promised = {number: quantity for number, quantity, _ in orders}
    return StockAudit(
        sale=sale.slug,
        initial=ledger.stocked,
        available=ledger.available,
        held=held,
        sold=sold,
        oversold=max(0, held + sold - ledger.stocked),
        lost=max(0, ledger.stocked - held - sold - ledger.available),
        stale_writes_refused=ledger.stale_writes_refused,
        breaches=tuple(_breaches(ledger, held, sold, promised)),
        **units_in_redis(sale=sale, available=ledger.available),
    )


def _breaches(ledger: Ledger, held: int, sold: int, orders: dict[str, int]) -> Iterator[Breach]:
    """Yield what is inconsistent; `orders` are the units of each live order."""
    stocked, available = ledger.stocked, ledger.available
    if held + sold > stocked:
        text = gettext_noop("oversold: %(promised)s promised of %(stocked)s")
        yield Breach(text, promised=held + sold, stocked=stocked)
    if held + sold + available != stocked:
        text = gettext_noop(
            "%(stocked)s initial ≠ %(available)s available + %(held)s held + %(sold)s sold"
        )
        yield Breach(text, stocked=stocked, available=available, held=held, sold=sold)
    left = stocked - sum(ledger.per_order.values())
    if left != available:
        text = gettext_noop("the ledger leaves %(left)s, the row says %(available)s")
        yield Breach(text, left=left, available=available)
    if orders != ledger.per_order:
        wrong = {number for number, _ in orders.items() ^ ledger.per_order.items()}
        text = gettext_noop("orders that differ from the ledger: %(orders)s")
        yield Breach(text, orders=", ".join(sorted(wrong)[:5]))


@contextmanager
def _snapshot() -> Iterator[None]:
    """Read everything as of one moment.

    Purchases do not wait for it, although counting a large sale takes a quarter of a second; on
    SQLite they do, because it runs one transaction at a time.
    """
    is_outermost = not connection.in_atomic_block
    with transaction.atomic():
        if is_outermost and connection.vendor != "sqlite":
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield


def units_in_redis(*, sale: Sale, available: int) -> dict[str, Any]:
    """Return `reserved`, `waiting` and `drift` of a StockAudit, or nothing if they are unknown."""
    if sale.is_queued:
        with suppress(ServiceUnavailable):
            state = store.read_state(sale=sale)
            return {
                "reserved": state.queued if state else 0,
                "waiting": store.oldest_age(sale=sale),
                "drift": state.stock - available if state else None,
            }
    return {}


def audit_all() -> Iterable[StockAudit]:
    """Yield the audit of every sale, oldest first."""
    return (audit_sale(sale=sale) for sale in Sale.objects.order_by("pk"))
