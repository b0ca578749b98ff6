"""Asyncio tasks on a real Redis: one inbox, no threads, and no traces of cancelled tasks."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis as client

from devservers import Redis
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking.backends.redis.backend import RedisBackend
from locking.backends.redis.requests import MAX_SLEEP, Asked
from tests.devservers.faults.interception import InterceptingProxy
from tests.locking.backends.redis.redis_tools import (
    BOUND,
    Connect,
    connect,
    proxy,
    server,
    waiting,
)
from tests.locking.calls import store_of

__all__ = ["connect", "proxy", "server"]

NAME = "n"


@pytest.fixture
def backend(server: Redis, connect: Connect) -> RedisBackend:
    # While thousands of waiters join, a busy machine takes longer than a second to list them.
    return connect(server.url, SOCKET_TIMEOUT=60.0)


def test_waiter_far_from_its_turn_asks_seldom() -> None:
    """Thousands who ask whenever a grant should have ended would delay the grants themselves."""
    near, far = (Asked(None, 0.0, 0, 1.0, place).ask_again_at for place in (5, 5000))
    assert 1.0 < near < 1.1
    assert far == MAX_SLEEP


async def soon(condition: Any) -> None:
    await asyncio.to_thread(until, condition, "the condition", 300)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def lock_threads() -> int:
    """Return the number of threads, without those of `asyncio.to_thread`."""
    return sum(not thread.name.startswith("asyncio") for thread in threading.enumerate())


async def serve(backend: RedisBackend, number: int) -> tuple[list[int], int, float]:
    """Queue tasks behind a holder; return their order, the new threads and bytes per task."""
    order: list[int] = []

    async def wait(place: int) -> None:
        async with store_of(backend).lock(NAME, ttl=60, timeout=600):
            order.append(place)

    async with store_of(backend).lock(NAME, ttl=60):
        first = asyncio.create_task(wait(0))
        await soon(lambda: waiting(backend) == 1)
        threads = lock_threads()
        before = resident_bytes()
        tasks = [asyncio.create_task(wait(place)) for place in range(1, number)]
        await soon(lambda: waiting(backend) == number)
        size = (resident_bytes() - before) / number
        threads = lock_threads() - threads
    await asyncio.gather(first, *tasks)
    return order, threads, size


@pytest.mark.parametrize(
    "number", [300, pytest.param(10_000, marks=pytest.mark.long)], ids=["300", "10000"]
)
def test_waiters_share_one_thread_and_are_served_in_order(
    backend: RedisBackend, number: int
) -> None:
    order, threads, size = asyncio.run(serve(backend, number))
    assert order == list(range(number))
    assert threads <= 0
    assert size < 8192 or number < 1000, "too few waiters for a figure"
    assert not backend.inspect()


class CancelledAt:
    """Awaits a coroutine, and cancels the running task at the await with number `step`."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], step: int) -> None:
        self.coroutine, self.left = coroutine, step

    def __await__(self) -> Generator[Any, Any, Any]:
        resume: Callable[[], Any] = partial(self.coroutine.send, None)
        while True:
            try:
                awaited = resume()
            except StopIteration as done:
                return done.value
            if self.left == 0:
                asyncio.current_task().cancel()
            self.left -= 1
            try:
                resume = partial(self.coroutine.send, (yield awaited))
            except asyncio.CancelledError as error:
                resume = partial(self.coroutine.throw, error)


async def is_cancelled_at(coroutine: Coroutine[Any, Any, Any], step: int) -> bool:
    """Run the coroutine in a task and cancel it at an await; False if it has fewer of them."""

    async def run() -> None:
        await CancelledAt(coroutine, step)

    try:
        await asyncio.create_task(run())
    except asyncio.CancelledError:
        return True
    return False


async def inject_cancellations(backend: RedisBackend, runs: int) -> int:
    """Cancel contending tasks at every await of acquire and release; return the cancellations."""
    done, cancelled, chance = 0, 0, random.Random(7)

    async def use() -> None:
        async with store_of(backend).lock(NAME, timeout=WAIT_TIMEOUT):
            await asyncio.sleep(0)

    async def contend() -> None:
        nonlocal done, cancelled
        while done < runs:
            done += 1
            if await is_cancelled_at(use(), chance.randrange(7)):
                cancelled += 1

    await asyncio.gather(*(contend() for _ in range(8)))
    return cancelled


@pytest.mark.parametrize(
    "runs", [400, pytest.param(10_000, marks=pytest.mark.long)], ids=["400", "10000"]
)
def test_cancellation_at_any_await_leaves_nothing_behind(backend: RedisBackend, runs: int) -> None:
    async def main() -> int:
        cancelled = await inject_cancellations(backend, runs)
        async with asyncio.timeout(WAIT_TIMEOUT):
            async with store_of(backend).lock(NAME, timeout=WAIT_TIMEOUT):
                pass
        return cancelled

    cancelled = asyncio.run(main())
    assert cancelled > runs // 4, "too few cancellations: the test proves nothing"
    until(lambda: not backend.inspect(), "no lock left")
    assert not store_of(backend).held
    until(lambda: backend.pending_releases.is_idle, "no release left")


def test_lost_inbox_is_replaced_and_waiters_keep_their_places(
    server: Redis, backend: RedisBackend
) -> None:
    order = list[int]()

    async def wait(place: int) -> None:
        async with store_of(backend).lock(NAME, timeout=WAIT_TIMEOUT):
            order.append(place)

    async def main() -> None:
        with client.Redis.from_url(server.url) as raw:
            async with store_of(backend).lock(NAME, ttl=60):
                tasks = []
                for place in range(3):
                    tasks.append(asyncio.create_task(wait(place)))
                    await soon(lambda place=place: waiting(backend) == place + 1)
                assert raw.client_kill_filter(_type="pubsub", skipme=True)
                await soon(lambda: raw.pubsub_channels())
            await asyncio.gather(*tasks)

    asyncio.run(main())
    assert order == [0, 1, 2]


def test_place_is_given_up_although_redis_was_away_for_longer_than_the_ttl(
    server: Redis, proxy: InterceptingProxy, connect: Connect
) -> None:
    """The next task opens its channel again: granted to it, the lock would wait for nobody."""
    near, other = connect(server.url), connect(f"redis://{proxy.url}")

    async def wait() -> bool:
        return await store_of(other).lock(NAME, ttl=0.1).aacquire(timeout=WAIT_TIMEOUT)

    async def main() -> None:
        async with store_of(near).lock(NAME, ttl=60):
            waiter = asyncio.create_task(wait())
            await soon(lambda: waiting(near) == 1)
            proxy.cut(refuse=True)
            waiter.cancel()
            assert await asyncio.wait([waiter])
            over = time.monotonic() + 0.3
            until(lambda: time.monotonic() > over, "its ttl, three times")
            proxy.accept()
            await asyncio.to_thread(until, lambda: waiting(near) == 0, "its place", BOUND)

    asyncio.run(main())


def test_message_without_a_grant_does_not_prolong_the_wait(
    server: Redis, backend: RedisBackend
) -> None:
    """It asks the waiter to try again, and arrives when the time of the wait is over."""

    async def wait() -> bool:
        return await store_of(backend).lock(NAME).aacquire(timeout=2.0)

    async def main() -> None:
        async with store_of(backend).lock(NAME, ttl=60):
            waiter, over = asyncio.create_task(wait()), time.monotonic() + 2.1
            await asyncio.to_thread(until, lambda: waiting(backend) == 1)
            with client.Redis.from_url(server.url, decode_responses=True) as raw:
                channel, _, _, owner = raw.lindex(backend.keys(NAME)[1], 1).split(" ", 3)
                assert raw.publish(channel, f"0 0 {owner}") == 1
            until(lambda: time.monotonic() > over, "the end of its time, in a busy event loop")
            assert not await asyncio.wait_for(waiter, 5)

    asyncio.run(main())
