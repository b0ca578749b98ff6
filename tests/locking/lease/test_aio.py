"""Tasks that are cancelled while they acquire a lock leave nothing behind."""

import asyncio

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT
from tests.locking.held_call import HeldCall
from tests.locking.scripted import scripted, waiters


def test_grant_that_arrives_after_the_cancellation_is_released(backend) -> None:
    backend.backend.then("acquire", request := HeldCall())
    backend.backend.ignores_cancel = True  # it granted before it received the cancellation

    async def main() -> None:
        waiter = asyncio.create_task(backend.lock("a").aacquire())
        await asyncio.to_thread(request.wait_until_started)
        waiter.cancel()
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.sleep(0)
        request.end()
        with pytest.raises(asyncio.CancelledError):
            await waiter

    asyncio.run(main())
    assert backend.backend.times("release"), "nothing was granted: the test proves nothing"
    assert not backend.held
    assert not backend.inspect()


def test_store_that_does_not_respond_delays_no_release_in_another_one() -> None:
    stopped = scripted()
    stopped.backend.then("release", request := HeldCall())

    async def main() -> None:
        one, other = stopped.lock("a"), scripted().lock("a")
        assert await one.aacquire()
        assert await other.aacquire()
        releases = [asyncio.create_task(one.arelease())]
        await asyncio.to_thread(request.wait_until_started)
        releases.append(asyncio.create_task(other.arelease()))
        done, _ = await asyncio.wait(
            releases, timeout=WAIT_TIMEOUT, return_when=asyncio.FIRST_COMPLETED
        )
        request.end()
        await asyncio.wait(releases)
        assert done == {releases[1]}

    asyncio.run(main())


def test_wait_for_a_task_that_has_ended_ends_without_the_lock(process) -> None:
    async def begin() -> asyncio.Task[bool]:
        return asyncio.create_task(process.lock("a").aacquire())

    async def main() -> None:
        async with process.lock("a"):
            wait = await asyncio.create_task(begin())
            while not waiters(process):
                await asyncio.sleep(0.001)
        assert not await asyncio.wait_for(wait, WAIT_TIMEOUT)
        assert not process.inspect()

    asyncio.run(main())


def test_cancelled_reentry_is_undone() -> None:
    backend, request = scripted(), HeldCall()

    async def main() -> None:
        lock = backend.lock("a")

        async def hold() -> None:
            async with lock:
                backend.backend.then("set_depth", request)
                try:
                    await lock.aacquire()
                except asyncio.CancelledError:
                    assert lock.lease.count == 1
                    raise

        holder = asyncio.create_task(hold())
        await asyncio.to_thread(request.wait_until_started)
        holder.cancel()
        await asyncio.sleep(0)
        request.end()
        with pytest.raises(asyncio.CancelledError):
            await holder
        assert not backend.inspect()

    asyncio.run(main())
