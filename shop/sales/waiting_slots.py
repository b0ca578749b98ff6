"""Waiting slots: how many threads of this process may wait for the lock of one sale."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings

from locking import LockError
from shop.errors import QueueFull
from shop.platform.metrics import WAITING_BUYERS

STANDSTILL = 0.1
"""Seconds without a grant of the lock to this process, after which the queue no longer moves."""
MAX_SALES = 1000

_waiting: Counter[int] = Counter()
_granted_at: dict[int, float] = {}
"""By sale: when a thread that had obtained the lock last left the queue (monotonic)."""
clear = _granted_at.clear
_guard = threading.Lock()


@contextmanager
def waiting_slot(*, sale_id: int) -> Iterator[None]:
    """Occupy a slot while waiting for the lock and holding it. Raise QueueFull if none is free.

    The remaining threads of the process stay available for pages and refusals.
    """
    with _guard:
        if is_queue_full(sale_id):
            raise QueueFull
        _waiting[sale_id] += 1
        WAITING_BUYERS.set(_waiting.total())
    is_granted = True
    try:
        yield
    except LockError:
        is_granted = False
        raise
    finally:
        with _guard:
            if is_granted:
                if len(_granted_at) >= MAX_SALES:
                    _granted_at.clear()
                _granted_at[sale_id] = time.monotonic()
            _waiting[sale_id] -= 1
            if not _waiting[sale_id]:
                del _waiting[sale_id]
            WAITING_BUYERS.set(_waiting.total())


def is_queue_full(sale_id: int) -> bool:
    """Return True if MAX_WAITING threads wait and none obtained the lock within STANDSTILL.

    A refusal costs a third of a purchase: while the queue moves, every thread may join it.
    """
    if _waiting[sale_id] < settings.MAX_WAITING:
        return False
    return time.monotonic() - _granted_at.get(sale_id, 0.0) > STANDSTILL
