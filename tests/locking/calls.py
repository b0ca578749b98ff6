"""Locks of a backend, and one acquired here or in another thread."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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


@contextmanager
def held_by_another(backend: LockStore, name: str) -> Iterator[None]:
    """Hold a lock in another thread, which lives: the lock of an ended one is released."""
    with ThreadPoolExecutor(1) as other:
        held = backend.lock(name)
        other.submit(held.acquire).result(30)
        yield
        other.submit(held.release).result(30)
