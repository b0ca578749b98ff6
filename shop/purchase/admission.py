"""Admission control: refuse purchases from memory, before they cost a row, a lock or a thread.

Nothing here guards the stock: a purchase checks everything again where it writes.
"""

import time
from functools import partial
from typing import NamedTuple

from locking import LockError, policy
from locking.models import WriteStrategy
from locking.refresh import RefreshingCache
from shop.errors import NotOpen, QueueFull, SoldOut
from shop.models import Order, Sale
from shop.sales.queries import get_sale
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


class Customers(NamedTuple):
    """The customers with an order in a sale while its stock row carried that fence."""

    at: float
    fence: tuple[int, int]
    ids: frozenset[int]


_sales: RefreshingCache[str, Sale] = RefreshingCache(MAX_SALES)
_customers: dict[int, Customers] = {}
_returning: RefreshingCache[str, bool] = RefreshingCache(MAX_SALES)
"""By slug: True if Redis has the flag that stock of the sale may be returning."""


def cached_sale(*, slug: str) -> Sale:
    """Return a sale with its stock as they were at most MAX_AGE ago. Raise NotFound.

    For admission only. Each process reads the row at most twenty times a second.
    """
    return _sales.get(slug, partial(get_sale, slug=slug), fresh=FRESH, max_age=MAX_AGE)


def admit(*, sale: Sale, customer_id: int) -> None:
    """Raise NotOpen, SoldOut or QueueFull if the purchase cannot succeed now.

    A customer with an order in the sale is admitted: the form may be the one of that order.
    """
    phase = sale.phase()
    if phase == Sale.Phase.ENDED and sale.is_queued:
        return  # only Redis knows the reservations whose orders are not written yet
    if phase != Sale.Phase.OPEN:
        if _has_no_order(sale, customer_id):
            raise SoldOut if phase == Sale.Phase.SOLD_OUT else NotOpen
    elif is_queue_full(sale.pk):
        raise QueueFull


def _has_no_order(sale: Sale, customer_id: int) -> bool:
    """Return False also if it is unknown: the purchase then reads the orders itself."""
    known = _customers.get(sale.pk)
    # Every order and every return leaves a fence on the stock row, except naive writes.
    fence = sale.stock.fence_epoch, sale.stock.fence_token
    if known is None or known.fence != fence:
        now = time.monotonic()
        if (known and now - known.at < CUSTOMERS_INTERVAL) or _writes_leave_no_fence():
            return False
        if len(_customers) >= MAX_SALES:
            _customers.clear()
        ids = Order.objects.filter(sale=sale).values_list("customer_id", flat=True)
        known = _customers[sale.pk] = Customers(now, fence, frozenset(ids))
    return customer_id not in known.ids and not _may_return(sale.slug)


def _may_return(slug: str) -> bool:
    read = partial(is_stock_returning, slug=slug)
    return _returning.get(slug, read, fresh=FLAG_AGE, max_age=MAX_AGE)


def _writes_leave_no_fence() -> bool:
    try:
        return policy.current().strategy == WriteStrategy.NAIVE
    except LockError:
        return True


def clear() -> None:
    """Drop everything that this process remembers of sales."""
    for memory in (_sales, _customers, _returning):
        memory.clear()
