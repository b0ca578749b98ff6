"""The door of a sale: what is refused before it costs a row, a lock or a thread.

Nothing here guards the stock; a purchase checks everything again where it writes.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from django.conf import settings
from django.core.cache import caches

from locking import LockError, policy
from locking.models import WriteStrategy
from locking.refresh import RefreshingCache
from shop.errors import NotOpen, QueueFull, SoldOut
from shop.models import Order, Sale
from shop.sales.queries import get_sale

MAX_AGE = 0.1
"""Seconds for which a process may turn buyers away by what it saw of a sale."""
FRESH = 0.05
"""Seconds after which one thread looks again while the others go on."""
STANDSTILL = 0.1
"""Seconds in which nobody gets a line's lock, after which it counts as standing still."""
MAX_SALES = 1000
HOLDERS_PAUSE = 1.0
"""Seconds between two looks at who has an order in a sale whose stock keeps changing."""
RETURNING = 15.0
"""Seconds in which pieces come back: more than lock and commit may take, and MAX_AGE."""
NEWS_AGE = 0.005
"""Seconds after which one thread asks again for news of that while the others go on: less than it
takes pieces to come back and be sold, and the buyer to be told and to send his form again."""


class Holders(NamedTuple):
    """Who had an order in a sale when its stock row carried that fence."""

    at: float
    fence: tuple[int, int]
    customers: frozenset[int]


_sales: RefreshingCache[str, Sale] = RefreshingCache(MAX_SALES)
_holders: dict[int, Holders] = {}
_returning: RefreshingCache[str, bool] = RefreshingCache(MAX_SALES)
"""By slug: True if Redis has the flag that stock of the sale may be returning."""
_waiting: Counter[int] = Counter()
_moved: dict[int, float] = {}
"""When somebody last left the line of a sale who had had its lock."""
_guard = threading.Lock()


def sale_at_door(*, slug: str) -> Sale:
    """The sale with its stock as they were at most MAX_AGE ago; NotFound when there is none.

    For admission only. In the second when everyone buys, each process looks at the row twenty
    times, whoever asks.
    """
    return _sales.get(slug, partial(get_sale, slug=slug), fresh=FRESH, max_age=MAX_AGE)


def admit(*, sale: Sale, customer_id: int) -> None:
    """Refuse, from memory, who certainly gets nothing now: NotOpen, SoldOut, QueueFull.

    Whoever has an order in the sale is let through, for the form may be that order's.
    """
    phase = sale.phase()
    if phase == Sale.Phase.ENDED and sale.is_queued:
        return  # Redis knows who has a reservation that is not written yet
    if phase != Sale.Phase.OPEN:
        if _has_nothing(sale, customer_id):
            raise SoldOut if phase == Sale.Phase.SOLD_OUT else NotOpen
    elif _is_full(sale.pk):
        raise QueueFull


def _has_nothing(sale: Sale, customer_id: int) -> bool:
    """False also when that is not known: then the purchase itself looks."""
    known = _holders.get(sale.pk)
    # Every order and every return leaves a fence on the stock row, but for naive writes.
    fence = sale.stock.fence_epoch, sale.stock.fence_token
    if known is None or known.fence != fence:
        now = time.monotonic()
        if (known and now - known.at < HOLDERS_PAUSE) or _writes_leave_no_fence():
            return False
        if len(_holders) >= MAX_SALES:
            _holders.clear()
        customers = Order.objects.filter(sale=sale).values_list("customer_id", flat=True)
        known = _holders[sale.pk] = Holders(now, fence, frozenset(customers))
    return customer_id not in known.customers and not _may_return(sale.slug)


def clear() -> None:
    """Drop everything that this process remembers of sales."""
    for memory in (_sales, _holders, _returning, _moved):
        memory.clear()


def announce_return(*, slug: str) -> None:
    """Before pieces come back: who buys them elsewhere, and sends his form again to a process that
    still remembers an empty shelf, must not hear that it is sold out."""
    caches["optional"].set(f"returning:{slug}", 1, RETURNING)


def _may_return(slug: str) -> bool:
    return _returning.get(
        slug,
        lambda: caches["optional"].get(f"returning:{slug}") is not None,
        fresh=NEWS_AGE,
        max_age=MAX_AGE,
    )


def _writes_leave_no_fence() -> bool:
    try:
        return policy.current().strategy == WriteStrategy.NAIVE
    except LockError:
        return True


@contextmanager
def in_line(*, sale_id: int) -> Iterator[None]:
    """Stand in line for the lock; QueueFull when it is full.

    Then the threads that are left go on answering pages and refusals.
    """
    with _guard:
        if _is_full(sale_id):
            raise QueueFull
        _waiting[sale_id] += 1
    is_stuck = False
    try:
        yield
    except LockError:
        is_stuck = True
        raise
    finally:
        with _guard:
            if not is_stuck:
                if len(_moved) >= MAX_SALES:
                    _moved.clear()
                _moved[sale_id] = time.monotonic()
            _waiting[sale_id] -= 1
            if not _waiting[sale_id]:
                del _waiting[sale_id]


def _is_full(sale_id: int) -> bool:
    """Whether MAX_WAITING threads of this process stand there, and none was served for a moment.

    To turn a buyer away costs a third of serving one: while the line moves, all threads may join.
    """
    if _waiting[sale_id] < settings.MAX_WAITING:
        return False
    return time.monotonic() - _moved.get(sale_id, 0.0) > STANDSTILL
