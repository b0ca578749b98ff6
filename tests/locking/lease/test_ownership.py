"""A lock belongs to the caller in whose frame `acquire` was called, on a real Redis."""

import asyncio
import gc
from collections.abc import Coroutine, Iterator

import pytest
from asgiref.sync import sync_to_async

from devservers import Redis
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockMisuse, locks
from locking.lease import LockStore
from locking.testing.calls import in_thread

NAME = "owned"


@pytest.fixture
def redis(redis_server: Redis) -> Iterator[LockStore]:
    yield locks["redis"]
    locks.close()


def is_free(backend: LockStore) -> bool:
    return NAME not in {held.name for held in backend.inspect()}


@pytest.mark.parametrize("wrap", ["wait_for", "gather", "shield", "task"])
def test_wrapped_acquire_belongs_to_the_calling_task(redis: LockStore, wrap: str) -> None:
    """`asyncio.wait_for` of Python 3.11 runs its coroutine in a task of its own."""

    async def main() -> None:
        mine = redis.lock(NAME)
        wrapped = {
            "wait_for": lambda: asyncio.wait_for(mine.aacquire(), WAIT_TIMEOUT),
            "gather": lambda: asyncio.gather(mine.aacquire(), asyncio.sleep(0)),
            "shield": lambda: asyncio.shield(mine.aacquire()),
            "task": lambda: asyncio.create_task(mine.aacquire()),
        }
        assert await wrapped[wrap]()
        assert mine.lease is not None, "the caller does not hold the lock"
        mine.lease.check()
        assert await asyncio.wait_for(mine.aacquire(), WAIT_TIMEOUT), "re-entry"
        assert mine.lease.count == 2
        await asyncio.wait_for(mine.arelease(), WAIT_TIMEOUT)
        await asyncio.wait_for(mine.arelease(), WAIT_TIMEOUT)
        assert mine.lease is None

    asyncio.run(main())
    assert is_free(redis)


@pytest.mark.parametrize("is_bridged", [False, True], ids=["await", "sync_to_async"])
def test_child_task_does_not_share_the_lock(redis: LockStore, is_bridged: bool) -> None:
    def acquire(**options: float) -> Coroutine[object, object, bool]:
        mine = redis.lock(NAME)
        return sync_to_async(mine.acquire)(**options) if is_bridged else mine.aacquire(**options)

    async def child() -> bool:
        return await acquire(timeout=0.05)

    async def main() -> None:
        mine = redis.lock(NAME)
        assert await acquire()
        assert await asyncio.create_task(child()) is False
        await (sync_to_async(mine.release)() if is_bridged else mine.arelease())

    asyncio.run(main())
    assert is_free(redis)


def test_two_acquires_of_one_task_at_once_are_refused(redis: LockStore) -> None:
    """The second one would wait for its own task."""

    async def main() -> None:
        mine = redis.lock(NAME)
        async with asyncio.timeout(WAIT_TIMEOUT):
            done = await asyncio.gather(mine.aacquire(), mine.aacquire(), return_exceptions=True)
        assert done[0] is True
        assert isinstance(done[1], LockMisuse)
        await mine.arelease()

    asyncio.run(main())
    assert is_free(redis)


def test_sync_code_under_sync_to_async_may_enter_again(redis: LockStore) -> None:
    """As a sync view under ASGI does."""

    def view() -> int:
        with redis.lock(NAME) as lease, redis.lock(NAME, timeout=0.1):
            return lease.count

    async def main() -> None:
        assert await asyncio.gather(*(sync_to_async(view)() for _ in range(3))) == [2, 2, 2]

    asyncio.run(main())
    assert is_free(redis)


@pytest.mark.parametrize("is_bridged", [False, True], ids=["await", "sync_to_async"])
def test_lock_that_a_task_leaves_behind_is_released(redis: LockStore, is_bridged: bool) -> None:
    async def leave() -> None:
        mine = redis.lock(NAME, ttl=60)
        assert await (sync_to_async(mine.acquire)() if is_bridged else mine.aacquire())

    asyncio.run(leave())
    gc.collect()
    until(lambda: is_free(redis), "the release")


def test_lock_that_is_not_reentrant_refuses_its_holder(redis: LockStore) -> None:
    mine = redis.lock(NAME, reentrant=False)
    with mine:
        assert mine.acquire(blocking=False) is False
        assert mine.acquire(timeout=0.05) is False
        assert in_thread(mine.acquire, blocking=False) is False
        with redis.lock(NAME, timeout=0.05):
            """Another lock object may still be reentrant."""
    with pytest.raises(LockMisuse):
        mine.release()

    async def main() -> None:
        async with mine:
            assert await mine.aacquire(timeout=0.05) is False

    asyncio.run(main())
    assert is_free(redis)
