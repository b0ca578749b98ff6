"""LockTimeout names the holder, without a second wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from devservers.faults.waiting import until
from locking import Lock, LockTimeout, lock, locks
from locking.testing.calls import in_thread

with_rows = pytest.mark.django_db(transaction=True)


def until_waiting(backend, number: int) -> None:
    until(lambda: backend.backend.holders("report:7")[0].waiters == number)


async def enter(lock: Lock) -> None:
    async with lock:
        pytest.fail("it was held")


def timed_out(make: Callable[..., Lock], timeout: float) -> LockTimeout:
    """Return the error of another thread that waits for a held lock."""
    with pytest.raises(LockTimeout) as caught, make("report:7", timeout=timeout):
        pass
    return caught.value


@pytest.mark.parametrize(
    "alias",
    [
        "redis",
        pytest.param("database", marks=[with_rows, pytest.mark.stores]),
        "process",
        pytest.param("", marks=with_rows, id="the active one"),
    ],
)
def test_error_names_the_holder(alias):
    make = locks[alias].lock if alias else lock
    began = datetime.now(UTC) - timedelta(seconds=1)
    with make("report:7") as lease:
        errors = [in_thread(timed_out, make, timeout) for timeout in (0, 0.2)]
        with pytest.raises(LockTimeout) as caught:
            asyncio.run(enter(make("report:7", timeout=0.1)))
    for error, seconds in zip([*errors, caught.value], ("0", "0.2", "0.1"), strict=True):
        assert error.holder == lease.owner
        assert f"after {seconds} s: {lease.owner}" in str(error)
        assert began < error.since < datetime.now(UTC) + timedelta(seconds=1)
        assert f"{error.since:%H:%M:%S} UTC" in str(error)


def test_holder_of_the_moment_is_named():
    """Not the one that held the lock when the wait began."""
    redis = locks["redis"]
    first, next_ = redis.lock("report:7"), redis.lock("report:7")
    first.acquire()
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(lambda: next_.acquire(timeout=30) and next_.lease)
        until_waiting(redis, 1)
        waits = pool.submit(timed_out, redis.lock, 3.0)
        until_waiting(redis, 2)
        first.release()
        lease = second.result(30)
        assert waits.result(30).holder == lease.owner
        # Within the pool: the lock of a thread that has ended is released.
        assert redis.break_lock("report:7")
