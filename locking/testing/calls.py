"""Calls in another thread or process, and waits with a time limit."""

import os
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from locking.claims import READER
from locking.exceptions import LockUnavailable
from locking.lease import LockStore, StoreLock

WAIT_TIMEOUT = float(os.environ.get("LOCK_TEST_TIMEOUT", "20"))
"""Seconds that a loaded machine may need for what takes milliseconds."""
T = TypeVar("T")


def until(condition: Callable[[], T], what: str) -> T:
    """Poll `condition` and return its first true value; fail after WAIT_TIMEOUT."""
    deadline = time.monotonic() + WAIT_TIMEOUT
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true in {WAIT_TIMEOUT:g} s"
        time.sleep(0.01)
    return value


def until_available(call: Callable[[], T]) -> T:
    """Repeat a call while it raises LockUnavailable; return its result."""
    results = list[T]()

    def succeeds() -> list[T]:
        with suppress(LockUnavailable):
            results.append(call())
        return results

    return until(succeeds, "the store replying")[0]


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def in_thread(call: Callable[..., T], *args: Any, **options: Any) -> T:
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
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(0 if passed else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def acquire_and_release(
    locks: LockStore, name: str, timeout: float = WAIT_TIMEOUT, slots: int | None = None
) -> bool:
    """Return False if the lock stayed held."""
    lock = lock_for(locks, name, slots)
    if not lock.acquire(timeout=timeout):
        return False
    lock.release()
    return True


def lock_for(locks: LockStore, name: str, slots: int | None, **options: Any) -> StoreLock:
    """Return a lock, a semaphore, or the lock of a READER or WRITER."""
    if slots is None:
        return locks.lock(name, **options)
    if slots > 0:
        return locks.semaphore(name, slots, **options)
    both = locks.read_write(name)
    return both.read(**options) if slots == READER else both.write(**options)
