"""Acquires and releases without a reply reach the store when it responds again.

Every lock here has a ttl that is longer than WAIT_TIMEOUT, so a lock that is free within a wait of
the test was released and did not expire.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis as client

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockUnavailable
from locking.backends.redis.backend import RedisBackend
from tests.devservers.faults.interception import InterceptingProxy
from tests.locking.backends.redis.deployments import DEPLOYMENTS, Deployment, store
from tests.locking.backends.redis.redis_tools import Connect, claim, connect, take, waiting
from tests.locking.calls import store_of

__all__ = ["connect", "store"]
EACH = pytest.mark.parametrize("store", DEPLOYMENTS, indirect=True)

TTL = 3 * WAIT_TIMEOUT
TIMEOUT = 0.3
"""SOCKET_TIMEOUT and CONNECT_TIMEOUT of the backend that meets the fault."""
Fault = tuple[Callable[[], object], Callable[[], object]]


@pytest.fixture
def proxy(store: Deployment) -> InterceptingProxy:
    return store.proxy


@pytest.fixture
def direct(store: Deployment, connect: Connect) -> RedisBackend:
    """The backend of another process, which does not meet the faults of the proxy."""
    return connect(store.url)


@pytest.fixture
def backend(store: Deployment, connect: Connect) -> RedisBackend:
    """A backend behind the proxy, which has sent its scripts to the server."""
    options = {"SOCKET_TIMEOUT": TIMEOUT, "CONNECT_TIMEOUT": TIMEOUT}
    backend = connect(store.far, **options)

    def is_ready() -> bool:
        try:
            with store_of(backend).lock("n", ttl=TTL, renew=False):
                return True
        except LockUnavailable:  # a busy machine may take longer than TIMEOUT
            return False

    until(is_ready, "a lock on the servers without a fault")
    return backend


@pytest.fixture
def fault(request: pytest.FixtureRequest, store: Deployment) -> Fault:
    """Return the calls that inject and end the fault that the test names."""
    server, proxy = store.master, store.proxy

    def ping() -> None:
        with client.Redis.from_url(server.url, socket_timeout=WAIT_TIMEOUT) as raw:
            raw.ping()

    faults: dict[str, Fault] = {
        "paused": (lambda: server.pause_clients(2.0), ping),
        "stopped": (server.pause, server.resume),
        "killed": (server.kill, server.start),
        "cut": (lambda: proxy.cut(refuse=True), proxy.accept),
    }
    return faults[request.param]


def assert_released(direct: RedisBackend) -> None:
    until(lambda: not direct.inspect(), "the lock being released")


@pytest.mark.faults(row=11)
@pytest.mark.parametrize(
    ("store", "fault"),
    [
        *[("redis", fault) for fault in ("paused", "stopped", "killed", "cut")],
        # There, the others end in a failover.
        ("redis-sentinel", "cut"),
        ("redis-cluster", "cut"),
    ],
    indirect=True,
)
def test_release_during_an_outage_is_repeated(
    fault: Fault, backend: RedisBackend, direct: RedisBackend
) -> None:
    inject, recover = fault
    lease = take(backend, ttl=TTL)
    inject()
    try:
        with pytest.raises(LockUnavailable):  # a timeout opens the circuit breaker
            backend.probe()
        with pytest.raises(LockUnavailable):
            lease.release()
    finally:
        recover()
    successor = take(direct, ttl=TTL)
    assert successor.token > lease.token


@pytest.mark.faults(row=11)
@pytest.mark.parametrize("new_connections", ["held", "open"])
@EACH
def test_acquire_that_arrives_after_its_timeout_is_withdrawn(
    new_connections: str,
    backend: RedisBackend,
    direct: RedisBackend,
    proxy: InterceptingProxy,
    store: Deployment,
) -> None:
    """With new connections open, a release on one of them arrives before the late acquire."""
    clock = backend.keys("n")[2]
    with client.Redis.from_url(store.master.url) as raw:
        before = raw.get(clock)
        if new_connections == "held":
            proxy.hold_requests()
            deliver = proxy.resume
        else:
            deliver = proxy.hold_open_connections().set
        with pytest.raises(LockUnavailable, match="did not reply"):
            backend.acquire(claim(ttl=TTL), 0)
        if new_connections == "open":
            until(lambda: backend.pending_releases.is_idle, "the release on a new connection")
        assert raw.get(clock) == before
        deliver()
        until(lambda: raw.get(clock) != before, "the late acquire arriving")
    assert_released(direct)


@pytest.mark.faults(row=10)
@EACH
def test_acquire_whose_reply_is_lost_is_withdrawn(
    backend: RedisBackend, direct: RedisBackend, proxy: InterceptingProxy
) -> None:
    proxy.hold_replies()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(backend.acquire, claim(ttl=TTL), 0)
        until(direct.inspect, "the grant")
        proxy.cut(refuse=True)
        with pytest.raises(LockUnavailable):
            asked.result(WAIT_TIMEOUT)
    assert direct.inspect()
    proxy.accept()
    assert_released(direct)


@pytest.mark.faults(row=10)
@EACH
def test_grant_to_a_waiter_whose_connection_breaks_is_withdrawn(
    backend: RedisBackend, direct: RedisBackend, proxy: InterceptingProxy
) -> None:
    holder = take(direct, ttl=TTL)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(backend.acquire, claim(ttl=TTL), TTL)
        until(lambda: waiting(direct) == 1, "queueing")
        proxy.hold_replies()
        holder.release()
        (held,) = direct.inspect()
        assert held.owner != holder.owner, "the waiter was not granted the lock"
        proxy.cut(refuse=True)
        with pytest.raises(LockUnavailable):
            waiter.result(WAIT_TIMEOUT)
    proxy.accept()
    assert_released(direct)


@pytest.mark.faults(row=24)
@EACH
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
