"""The door of a sale: what is refused before it costs a row, a lock or a thread.

Nothing here guards the stock; a purchase checks everything again where it writes.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings

from shop.errors import Crowded
from shop.models import Sale
from shop.sales import get_sale

MAX_AGE = 0.1
"""Seconds for which a process may turn buyers away by what it saw of a sale."""
MAX_SALES = 1000

_seen: dict[str, tuple[float, Sale]] = {}
_waiting: Counter[int] = Counter()
_guard = threading.Lock()


def sale_at_door(*, slug: str) -> Sale:
    """The sale with its stock as they were at most MAX_AGE ago; NotFound when there is none.

    For admission only. In the second when everyone buys, each process looks at the row ten times.
    """
    seen_at, sale = _seen.get(slug, (0.0, None))
    if sale is not None and time.monotonic() - seen_at < MAX_AGE:
        return sale
    seen_at = time.monotonic()
    sale = get_sale(slug=slug)
    if len(_seen) >= MAX_SALES:
        _seen.clear()
    _seen[slug] = (seen_at, sale)
    return sale


@contextmanager
def in_line(*, sale_id: int) -> Iterator[None]:
    """Stand in line for the lock; Crowded when as many of this process's threads stand there.

    The threads that are left go on answering pages and refusals.
    """
    with _guard:
        if _waiting[sale_id] >= settings.MAX_WAITING:
            raise Crowded
        _waiting[sale_id] += 1
    try:
        yield
    finally:
        with _guard:
            _waiting[sale_id] -= 1
            if not _waiting[sale_id]:
                del _waiting[sale_id]
