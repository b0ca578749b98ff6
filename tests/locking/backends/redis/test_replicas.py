"""The option REPLICAS: a grant counts once replicas have it."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis as client

from devservers import Redis
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockUnavailable
from locking.backends.redis.backend import RedisBackend
from locking.testing.calls import acquire_and_release, within
from tests.devservers.redis_groups import Node, RedisCluster, SentinelRedis
from tests.locking.backends.redis.redis_tools import (
    BOUND,
    Connect,
    claim,
    connect,
    take,
    waiters,
)
from tests.locking.calls import store_of

__all__ = ["connect"]


@pytest.fixture
def replica() -> Iterator[Redis]:
    with Node() as master, Node(replica_of=master) as replica:
        master.wait_for("INFO replication", "state=online")
        with client.Redis.from_url(master.url) as raw:  # online, it may still be loading
            raw.set("first", 1)
            until(lambda: raw.wait(1, 100), "the replica's acknowledgement")
            raw.delete("first")
        yield replica


def owner_at(server: Redis) -> str | None:
    with client.Redis.from_url(server.url, decode_responses=True) as raw:
        return raw.hget("lock:{n}", "owner")


@pytest.fixture
def backend(replica: Redis, connect: Connect) -> RedisBackend:
    assert replica.replica_of
    return connect(replica.replica_of.url, REPLICAS=1, SOCKET_TIMEOUT=4.0)


def test_grant_is_on_the_replica(replica: Redis, backend: RedisBackend) -> None:
    """Of a lock that was free, of one that a release handed over, and of a task's."""
    holder, waiter = claim(), claim()
    assert backend.acquire(holder, 0)
    assert owner_at(replica) == holder.owner
    with waiters(backend, waiter) as (waits,):
        backend.release(holder, 0)
        assert waits.result(WAIT_TIMEOUT)
        assert owner_at(replica) == waiter.owner
    backend.release(waiter, 0)

    semaphore = store_of(backend).semaphore("n", 1)
    assert semaphore.acquire(timeout=5)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(acquire_and_release, store_of(backend), "n", slots=1)
        until(lambda: [held.waiters for held in backend.inspect()] == [1], "queueing")
        semaphore.release()
        assert waits.result(WAIT_TIMEOUT)

    async def task() -> None:
        async with store_of(backend).lock("n", timeout=5) as lease:
            assert owner_at(replica) == lease.claim.owner

    asyncio.run(task())


@pytest.mark.faults(row=17, backend="redis")
def test_lock_without_its_replica_is_released(replica: Redis, backend: RedisBackend) -> None:
    """Free or handed over, it is unavailable in bounded time, and nothing of it remains."""
    holder = take(backend)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(backend.acquire, claim(), WAIT_TIMEOUT)
        until(lambda: [held.waiters for held in backend.inspect()] == [1], "queueing")
        replica.pause()
        backend.release(holder.claim, holder.token)
        with within(BOUND), pytest.raises(LockUnavailable, match="0 of 1 REPLICAS"):
            waits.result(WAIT_TIMEOUT)
        with within(BOUND), pytest.raises(LockUnavailable, match="0 of 1 REPLICAS"):
            backend.acquire(claim(), 0)
    assert not backend.inspect()
    replica.resume()
    assert take(backend)


@pytest.mark.faults(row=17, backend="redis")
def test_extension_counts_once_the_replica_has_it(replica: Redis, backend: RedisBackend) -> None:
    asked = claim(ttl=60.0)
    grant = backend.acquire(asked, 0)
    backend.extend(asked, grant.token, 600.0)
    with client.Redis.from_url(replica.url) as raw:
        assert raw.pttl("lock:{n}") > 500_000
    replica.pause()
    with within(BOUND), pytest.raises(LockUnavailable, match="0 of 1 REPLICAS"):
        backend.extend(asked, grant.token, 600.0)
    replica.resume()
    backend.release(asked, grant.token)


def test_enough_replicas_of_sentinels_and_of_a_cluster(
    redis_sentinel: SentinelRedis, redis_cluster: RedisCluster, connect: Connect
) -> None:
    for servers in (redis_sentinel, redis_cluster):
        lease = take(connect(servers.url, REPLICAS=1))
        lease.backend.release(lease.claim, lease.token)
        with pytest.raises(LockUnavailable, match="1 of 2 REPLICAS"):
            take(connect(servers.url, REPLICAS=2))
