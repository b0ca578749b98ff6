"""Calls in another thread or process, and their duration."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from devservers.faults.waiting import WAIT_TIMEOUT
from locking.backends.base import Backend
from locking.lease import Lease
from locking.lease.lock import BaseLock


def in_thread(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return the result of a call in another thread, which is another lock owner."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *args, **options).result(WAIT_TIMEOUT * 2)


def passes_in_child(check: Callable[[], object]) -> bool:
    """Return True if `check` returned a true value in a forked child, and raised nothing."""
    child = os.fork()
    if child == 0:
        passed = False
        try:
            passed = bool(check())
        finally:
            os._exit(0 if passed else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def acquired(lock: BaseLock, **options: Any) -> Lease:
    """Acquire a free lock; return its lease."""
    assert lock.acquire(**options)
    return lock.lease


def acquire_and_release(backend: Backend, name: str, timeout: float = WAIT_TIMEOUT) -> bool:
    """Return False if the lock stayed held."""
    lock = backend.lock(name)
    if not lock.acquire(timeout=timeout):
        return False
    lock.release()
    return True


def elapsed(call: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    started = time.monotonic()
    call()
    return time.monotonic() - started


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds
