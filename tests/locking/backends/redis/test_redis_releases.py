"""Acquires and releases without a reply reach the store when it responds again.

Every lock here has a ttl that is longer than WAIT_TIMEOUT, so a lock that is free within a wait of
the test was released and did not expire. The contract cuts and holds connections on all stores.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis as client

from devservers import Redis
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockUnavailable
from locking.backends.redis.backend import RedisBackend
from tests.devservers.faults.interception import InterceptingProxy
from tests.locking.backends.redis.redis_tools import (
    Connect,
    claim,
    connect,
    proxy,
    server,
    take,
    waiting,
)
from tests.locking.calls import store_of

__all__ = ["connect", "proxy", "server"]

TTL = 3 * WAIT_TIMEOUT
TIMEOUT = 0.3
"""SOCKET_TIMEOUT and CONNECT_TIMEOUT of the backend that meets the fault."""


@pytest.fixture
def direct(server: Redis, connect: Connect) -> RedisBackend:
    """The backend of another process, which does not meet the faults of the proxy."""
    return connect(server.url)


@pytest.fixture
def backend(proxy: InterceptingProxy, connect: Connect) -> RedisBackend:
    """A backend behind the proxy, which has sent its scripts to the server."""
    options = {"SOCKET_TIMEOUT": TIMEOUT, "CONNECT_TIMEOUT": TIMEOUT}
    backend = connect(f"redis://{proxy.url}/0", **options)

    def is_ready() -> bool:
        try:
            with store_of(backend).lock("n", ttl=TTL, renew=False):
                return True
        except LockUnavailable:  # a busy machine may take longer than TIMEOUT
            return False

    until(is_ready, "a lock on a server without a fault")
    return backend


def assert_released(direct: RedisBackend) -> None:
    until(lambda: not direct.inspect(), "the lock being released")


@pytest.mark.faults(row=11, backend="redis")
def test_release_during_an_outage_is_repeated(
    server: Redis, backend: RedisBackend, direct: RedisBackend
) -> None:
    lease = take(backend, ttl=TTL)
    server.pause()
    with pytest.raises(LockUnavailable):  # a timeout opens the circuit breaker
        backend.probe()
    with pytest.raises(LockUnavailable):
        lease.release()
    server.resume()
    assert take(direct, ttl=TTL).token > lease.token


@pytest.mark.faults(row=11, backend="redis")
def test_acquire_that_arrives_after_its_release_is_withdrawn(
    backend: RedisBackend, direct: RedisBackend, proxy: InterceptingProxy, server: Redis
) -> None:
    """A release on a new connection arrives before the late acquire."""
    clock = backend.keys("n")[2]
    with client.Redis.from_url(server.url) as raw:
        before = raw.get(clock)
        deliver = proxy.hold_open_connections().set
        with pytest.raises(LockUnavailable, match="did not reply"):
            backend.acquire(claim(ttl=TTL), 0)
        until(lambda: backend.pending_releases.is_idle, "the release on a new connection")
        assert raw.get(clock) == before
        deliver()
        until(lambda: raw.get(clock) != before, "the late acquire arriving")
    assert_released(direct)


@pytest.mark.faults(row=10, backend="redis")
@pytest.mark.parametrize("waits", [False, True], ids=["free", "waiting"])
def test_grant_whose_reply_is_lost_is_withdrawn(
    waits: bool, backend: RedisBackend, direct: RedisBackend, proxy: InterceptingProxy
) -> None:
    """That of a lock that was free, and that of a waiter whose connection breaks."""
    asked, holder = claim(ttl=TTL), take(direct, ttl=TTL) if waits else None
    with ThreadPoolExecutor(1) as pool:
        if holder is None:
            proxy.hold_replies()
        waiter = pool.submit(backend.acquire, asked, TTL if waits else 0)
        if holder is not None:
            until(lambda: waiting(direct) == 1, "queueing")
            proxy.hold_replies()
            holder.release()
        until(lambda: [held.owner for held in direct.inspect()] == [asked.owner], "the grant")
        proxy.cut(refuse=True)
        with pytest.raises(LockUnavailable):
            waiter.result(WAIT_TIMEOUT)
    assert direct.inspect()
    proxy.accept()
    assert_released(direct)


@pytest.mark.faults(row=24, backend="redis")
def test_repeated_release_leaves_the_lock_of_a_later_holder(
    backend: RedisBackend, direct: RedisBackend, proxy: InterceptingProxy
) -> None:
    lease = take(backend, ttl=TTL)
    proxy.cut(refuse=True)
    with pytest.raises(LockUnavailable):
        lease.release()
    assert direct.break_lock("n")
    successor = take(direct, ttl=TTL)
    assert not backend.pending_releases.is_idle
    proxy.accept()
    until(lambda: backend.pending_releases.is_idle, "the release being repeated")
    assert [held.owner for held in direct.inspect()] == [successor.owner]
