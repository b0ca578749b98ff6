"""A lock that is acquired, the locks of a backend, and the duration of a call."""

import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from locking.backends.base import Backend
from locking.lease import Lease, Lock, LockStore

_stores: WeakKeyDictionary[Backend, LockStore] = WeakKeyDictionary()


def store_of(backend: Backend) -> LockStore:
    """Return the locks of a backend, the same ones for every call."""
    if backend not in _stores:
        _stores[backend] = LockStore(backend)
    return _stores[backend]


def acquired(lock: Lock, **options: Any) -> Lease:
    """Acquire a free lock; return its lease."""
    assert lock.acquire(**options)
    return lock.lease


def elapsed(call: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    started = time.monotonic()
    call()
    return time.monotonic() - started
