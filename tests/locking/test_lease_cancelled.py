"""A task that is cancelled while it takes a lock leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from locking.backends.base import Claim
from tests.locking.scripted import PATIENCE, scripted, waiters


def test_a_cancelled_waiter_leaves_no_trace_however_often_it_is_cancelled(process) -> None:
    async def main() -> None:
        async with process.lock("a"):
            waiter = asyncio.create_task(process.lock("a").aacquire())
            while not waiters(process):
                await asyncio.sleep(0.001)
            waiter.cancel()
            await asyncio.sleep(0)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert not waiters(process)
        assert not process.inspect()

    asyncio.run(main())


def test_a_grant_that_crosses_the_cancellation_is_given_back() -> None:
    backend = scripted()
    asked, answer = threading.Event(), threading.Event()
    backend.then("acquire", lambda: (asked.set(), answer.wait(PATIENCE)))
    backend.is_deaf = True  # it had granted before it heard of the cancellation

    async def main() -> None:
        waiter = asyncio.create_task(backend.lock("a").aacquire())
        await asyncio.to_thread(asked.wait, PATIENCE)
        waiter.cancel()
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.sleep(0)
        answer.set()
        with pytest.raises(asyncio.CancelledError):
            await waiter

    asyncio.run(main())
    assert backend.times("release"), "the fault did not fire: nothing was granted"
    assert not backend.held
    assert not backend.inspect()


def test_a_cancelled_reentry_does_not_count() -> None:
    backend = scripted()
    asked, answer = threading.Event(), threading.Event()

    async def main() -> None:
        lock = backend.lock("a")

        async def hold() -> None:
            async with lock:
                backend.then("set_depth", lambda: (asked.set(), answer.wait(PATIENCE)))
                try:
                    await lock.aacquire()
                except asyncio.CancelledError:
                    assert lock.lease.count == 1
                    raise

        holder = asyncio.create_task(hold())
        await asyncio.to_thread(asked.wait, PATIENCE)
        holder.cancel()
        await asyncio.sleep(0)
        answer.set()
        with pytest.raises(asyncio.CancelledError):
            await holder
        assert not backend.inspect()

    asyncio.run(main())


def test_sixty_waiting_tasks_leave_room_for_the_release(process) -> None:
    async def main() -> int:
        served = 0

        async def once() -> None:
            nonlocal served
            async with process.lock("a", timeout=PATIENCE):
                served += 1

        async with process.lock("a"):
            tasks = [asyncio.create_task(once()) for _ in range(60)]
            while waiters(process) < 60:
                await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        return served

    assert asyncio.run(main()) == 60


def test_a_wait_may_end_while_it_is_cancelled() -> None:
    """It takes back its `interrupt` between the look whether there is one and the call."""

    class Ending(Claim):
        seen = 0

        @property
        def interrupt(self) -> Callable[[], None] | None:
            self.seen += 1
            return None if self.seen > 1 else lambda: None

        @interrupt.setter
        def interrupt(self, value: object) -> None:
            """It is none to begin with."""

    claim = Ending(name="a", owner="me", ttl=6)
    claim.cancel()
    assert claim.seen
    assert claim.cancelled.is_set()
