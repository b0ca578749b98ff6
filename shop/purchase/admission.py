"""Admission control: refuse purchases from memory, before they cost a row, a lock or a thread.

Nothing here guards the stock: a purchase checks everything again where it writes.
"""

import math
import time
from functools import partial
from typing import NamedTuple, Protocol

from django.conf import settings

from inventory.models import WriteStrategy
from locking import LockError, policy
from shop.errors import NotAdmitted, NotOpen, QueueFull, ServiceUnavailable, SoldOut
from shop.models import Order, Sale
from shop.platform import rate_limits
from shop.platform.cache import RefreshingCache
from shop.sales.queries import sale_for_purchase
from shop.sales.stock_lock import is_stock_returning
from shop.sales.waiting_slots import is_queue_full

MAX_AGE = 0.1
"""Seconds for which a process may refuse customers by the state of a sale that it has read."""
FRESH = 0.05
"""Seconds after which one thread reads the sale again while the others use the cached one."""
MAX_SALES = 1000
CUSTOMERS_INTERVAL = 1.0
"""Minimum seconds between two reads of the customers of a sale whose stock keeps changing."""
FLAG_AGE = 0.005
"""Seconds after which one thread reads the flag "stock is returning" again. Units cannot be
returned and sold, and the customer sent the response and the form again, in less time."""
IN_FLIGHT = 5.0
"""Seconds for which a purchase can be in flight: longer than HARD_DEADLINE and the time limit of
the statement that it is waiting for then."""


Fence = tuple[int, int]


class Gate(Protocol):
    """Decides who may buy in a sale, in addition to `admit`: a waiting room, for example."""

    def check(self, *, sale: Sale, customer_id: int) -> None:
        """Raise NotAdmitted, or ServiceUnavailable if the answer is unknown."""

    def page(self, *, sale: Sale, customer_id: int | None) -> str | None:
        """Return the URL of the page that the customer has to pass first, None without one."""


class Customers(NamedTuple):
    """The customers with an order in a sale while its stock row carried that fence."""

    at: float
    fence: Fence
    ids: frozenset[int]


gates: list[Gate] = []
"""Filled by the applications that have one, when they are ready."""
_sales: RefreshingCache[str, Sale] = RefreshingCache(MAX_SALES)
_customers: dict[int, Customers] = {}
_sold_out: dict[int, tuple[float, Fence]] = {}
"""By id of a sale that is sold out: since when (monotonic), and the fence of its stock row."""
_returning: RefreshingCache[str, bool] = RefreshingCache(MAX_SALES)
"""By slug: True if Redis has the flag that stock of the sale may be returning."""


def cached_sale(*, slug: str) -> Sale:
    """Return a sale with its stock as they were at most MAX_AGE ago. Raise NotFound.

    For admission only. Each process reads the row at most twenty times a second.
    """
    return _sales.get(slug, partial(_read_sale, slug), fresh=FRESH, max_age=MAX_AGE)


def _read_sale(slug: str) -> Sale:
    sale = sale_for_purchase(slug=slug)
    if sale.left:
        _sold_out.pop(sale.pk, None)
    elif _sold_out.get(sale.pk, (0.0, None))[1] != _fence_of(sale):
        if len(_sold_out) >= MAX_SALES:
            _sold_out.clear()
        _sold_out[sale.pk] = time.monotonic(), _fence_of(sale)
    return sale


def is_settled(*, sale: Sale) -> bool:
    """Return True if no purchase in flight can succeed: no stock since it can have begun.

    Units that were returned and sold meanwhile have left another fence.
    """
    since, fence = _sold_out.get(sale.pk, (math.inf, None))
    return fence == _fence_of(sale) and time.monotonic() - since > IN_FLIGHT


def _fence_of(sale: Sale) -> Fence:
    """Return the fence of the stock row; every order and every return leaves one, except naive."""
    return sale.stock.fence_epoch, sale.stock.fence_token


def admit(*, sale: Sale, customer_id: int) -> None:
    """Raise NotOpen, SoldOut, TooMany, NotAdmitted or QueueFull if the purchase cannot succeed now.

    A customer with an order in the sale is admitted: the form may be the one of that order.
    """
    phase = sale.phase()
    # Of a queued sale that has ended, only Redis knows the reservations without an order.
    is_known = phase != Sale.Phase.ENDED or not sale.is_queued
    if phase != Sale.Phase.OPEN and is_known and _has_no_order(sale, customer_id):
        raise SoldOut if phase == Sale.Phase.SOLD_OUT else NotOpen
    rate_limits.count_repeated(settings.BUY_LIMIT, "buy", str(customer_id))
    for gate in gates:
        _pass(gate, sale, customer_id)
    if phase == Sale.Phase.OPEN and is_queue_full(sale.pk):
        raise QueueFull


def _pass(gate: Gate, sale: Sale, customer_id: int) -> None:
    try:
        gate.check(sale=sale, customer_id=customer_id)
    except (NotAdmitted, ServiceUnavailable):
        if not Order.objects.filter(sale=sale, customer_id=customer_id).exists():
            raise


def gate_page(*, sale: Sale, customer_id: int | None) -> str | None:
    """Return the URL of the first page that the customer has to pass before the form, or None."""
    pages = (gate.page(sale=sale, customer_id=customer_id) for gate in gates)
    return next(filter(None, pages), None)


def _has_no_order(sale: Sale, customer_id: int) -> bool:
    """Return False also if it is unknown: the purchase then reads the orders itself."""
    known = _customers.get(sale.pk)
    fence = _fence_of(sale)
    if known is None or known.fence != fence:
        now = time.monotonic()
        if (known and now - known.at < CUSTOMERS_INTERVAL) or _writes_leave_no_fence():
            return False
        if len(_customers) >= MAX_SALES:
            _customers.clear()
        ids = Order.objects.filter(sale=sale).values_list("customer_id", flat=True)
        known = _customers[sale.pk] = Customers(now, fence, frozenset(ids))
    read = partial(is_stock_returning, slug=sale.slug)
    return customer_id not in known.ids and not _returning.get(
        sale.slug, read, fresh=FLAG_AGE, max_age=MAX_AGE
    )


def _writes_leave_no_fence() -> bool:
    try:
        return policy.current().mode == WriteStrategy.NAIVE
    except LockError:
        return True


def clear() -> None:
    """Drop everything that this process remembers of sales."""
    for memory in (_sales, _customers, _sold_out, _returning):
        memory.clear()
