"""FAULTS 5 on one Redis whose clock is set, and faults in the middle of a wait.

XF in a docstring: two holders are expected. The test requires that both exist and compares their
tokens.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis as client

from devservers import Redis
from devservers.faults.clock import Clock
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockUnavailable
from locking.backends.redis.pool import redis_breaker
from locking.lease import Lease
from tests.devservers.faults.interception import InterceptingProxy
from tests.locking.backends.redis.deployments import DEPLOYMENTS, store
from tests.locking.backends.redis.redis_tools import (
    Connect,
    claim,
    connect,
    server,
    take,
    waiting,
)

__all__ = ["connect", "server", "store"]
EACH = pytest.mark.parametrize("store", DEPLOYMENTS, indirect=True)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


@pytest.fixture
def driven(clock: Clock) -> Iterator[Redis]:
    """A server whose clock is set by the test."""
    server = Redis()
    clock.drive(server)
    with server:
        yield server


def assert_overlap(first: Lease, second: Lease) -> None:
    """Check that two leases overlap and that the tokens tell them apart."""
    assert not first.lost
    assert not second.lost
    assert second.token > first.token


@pytest.mark.faults(row=5, backend="redis", xf=True)
@pytest.mark.parametrize("step", [-60, 60])
def test_crash_and_clock_step(step: int, clock: Clock, driven: Redis, connect: Connect) -> None:
    """XF: the clients' clocks make up for the server's."""
    first = take(connect(driven.url))
    driven.kill()
    clock.shift(step)
    driven.start()
    assert_overlap(first, take(connect(driven.url)))


def test_tokens_stay_above_the_raised_floor(server: Redis, connect: Connect) -> None:
    """The floor counts even when every clock is behind it."""
    backend = connect(server.url)
    seen = take(backend).token + (3600 * 1_000_000 // 16 << 15)
    backend.break_lock("n")
    other = connect(server.url)
    other.raise_token_floor("n", seen)
    assert take(other).token > seen


def test_last_token_is_kept_until_the_clock_has_passed_it(
    clock: Clock, driven: Redis, connect: Connect
) -> None:
    """A client's clock was ahead, by more than the hour for which a clock may be set back."""
    hour = 3600
    with client.Redis.from_url(driven.url) as raw:
        ahead = connect(driven.url)
        ahead.raise_token_floor("n", (time.time_ns() // 16000 + 2 * hour * 1_000_000 // 16) << 15)
        token = 0
        for later, is_kept in ((0, False), (1.5, True), (4.5, False)):
            clock.shift(later * hour)
            assert raw.exists("lock:clock") == is_kept
            lease = take(ahead if not token else connect(driven.url))
            assert lease.token > token
            token = lease.token
            lease.backend.release(lease.claim, token)


@pytest.mark.parametrize("step", [-60, 60])
def test_grant_to_a_waiter_is_valid_after_a_clock_step(
    step: int, clock: Clock, driven: Redis, connect: Connect
) -> None:
    backend, holder = connect(driven.url), claim(ttl=600)
    backend.acquire(holder, 0)
    with ThreadPoolExecutor(1) as pool:
        # Passed over when the clock has jumped beyond its ttl, it asks again after a third of it.
        waiter = pool.submit(take, connect(driven.url), ttl=6.0)
        until(lambda: waiting(backend) == 1, "queueing")
        clock.shift(step)
        backend.release(holder, 0)
        lease = waiter.result(WAIT_TIMEOUT)
    assert not lease.lost
    assert 1 < lease.remaining <= 6


@pytest.fixture
def proxy(server: Redis) -> Iterator[InterceptingProxy]:
    with InterceptingProxy(server.port) as proxy:
        yield proxy


def test_lost_reply_to_a_waiter_leaves_one_queue_entry(
    server: Redis, connect: Connect, proxy: InterceptingProxy
) -> None:
    backend, direct, holder = connect(f"redis://{proxy.url}/0"), connect(server.url), claim()
    direct.acquire(holder, 0)
    backend.probe()
    proxy.replies_to_lose = 1
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(take, backend)
        until(lambda: not proxy.replies_to_lose and waiting(direct) == 1, "waiting")
        direct.release(holder, 0)
        lease = waiter.result(WAIT_TIMEOUT)
    assert [(held.owner, held.waiters) for held in direct.inspect()] == [(lease.owner, 0)]


def test_waiter_that_gives_up_during_a_stall_leaves_no_entry(
    server: Redis, connect: Connect
) -> None:
    """A remaining entry would be granted the lock for a ttl without a holder."""
    backend, holder = connect(server.url, SOCKET_TIMEOUT=1.0), claim()
    backend.acquire(holder, 0)
    with ThreadPoolExecutor(1) as pool:
        queued = pool.submit(backend.acquire, claim(), 2.0)
        until(lambda: waiting(backend) == 1, "queueing")
        server.pause()
        try:
            for call in (backend.probe, lambda: queued.result(WAIT_TIMEOUT)):
                with pytest.raises(LockUnavailable):
                    call()
        finally:
            server.resume()
    until(lambda: not redis_breaker(server.url).is_open, "the circuit breaker closing")
    until(lambda: not waiting(backend), "its entry being removed")
    backend.release(holder, 0)
    assert not backend.inspect()
