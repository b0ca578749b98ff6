"""LockTimeout names the holder, without a second wait."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from devservers.faults.waiting import until
from locking import LockTimeout, lock, locks, policy
from locking.testing.calls import in_thread

pytestmark = pytest.mark.django_db(transaction=True)

KNOWS_SINCE = {"redis", "database", "process"}


def until_waiting(backend, number: int) -> None:
    until(lambda: backend.inspect()[0].waiters == number)


def timed_out(alias: str, timeout: float) -> LockTimeout:
    """Return the error of another thread that waits for a held lock."""
    with pytest.raises(LockTimeout) as caught, locks[alias].lock("report:7", timeout=timeout):
        pass
    return caught.value


@pytest.mark.stores
@pytest.mark.parametrize("timeout", [0, 0.2])
@pytest.mark.parametrize("alias", ["redis", "database", "process", "zookeeper"])
def test_error_names_the_holder(alias, timeout, request):
    if alias == "zookeeper":
        request.getfixturevalue("zookeeper")
        request.addfinalizer(locks["zookeeper"].close)
    began = datetime.now(UTC) - timedelta(seconds=1)
    with locks[alias].lock("report:7") as lease:
        error = in_thread(timed_out, alias, timeout)
        assert error.holder == lease.owner
        assert lease.owner in str(error)
        assert f"after {timeout:g} s" in str(error)
        if alias in KNOWS_SINCE:
            assert began < error.since < datetime.now(UTC) + timedelta(seconds=1)
            assert f"{error.since:%H:%M:%S} UTC" in str(error)
        else:
            assert error.since is None


@pytest.mark.stores
@pytest.mark.parametrize("alias", ["redis", "process", "database"])
def test_error_of_a_task_names_the_holder(alias):
    async def wait() -> None:
        async with locks[alias].lock("report:7", timeout=0.1):
            pass

    with locks[alias].lock("report:7") as lease, pytest.raises(LockTimeout) as caught:
        asyncio.run(wait())
    assert caught.value.holder == lease.owner


def test_error_of_the_active_lock_names_the_holder():
    with locks[policy.current().backend].lock("report:7") as lease:
        wait = lock("report:7", timeout=0.1)
        with pytest.raises(LockTimeout, match=r"after 0\.1 s") as caught:
            in_thread(wait.__enter__)
    assert caught.value.holder == lease.owner


def test_holder_of_the_moment_is_named():
    """Not the one that held the lock when the wait began."""
    redis = locks["redis"]
    first, next_ = redis.lock("report:7"), redis.lock("report:7")
    first.acquire()
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(lambda: next_.acquire() and next_.lease)
        until_waiting(redis, 1)
        waits = pool.submit(timed_out, "redis", 1.0)
        until_waiting(redis, 2)
        first.release()
        lease = second.result(10)
        assert waits.result(10).holder == lease.owner
    assert redis.break_lock("report:7")
