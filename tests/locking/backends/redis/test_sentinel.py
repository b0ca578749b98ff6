"""A master that Sentinels name, its discovery, and its failover, also in a Cluster."""

import asyncio
import time
from collections.abc import Iterator

import pytest
import redis as client

from devservers.faults.waiting import WAIT_TIMEOUT
from locking import LockUnavailable
from locking.backends.redis.cluster import slot_of
from locking.testing.calls import until_available, within
from tests.devservers.redis_groups import SLOTS, RedisCluster, SentinelRedis
from tests.fault_rows import SLACK
from tests.locking.backends.redis.redis_tools import BOUND, Connect, claim, connect, take
from tests.locking.calls import store_of

__all__ = ["connect"]


@pytest.fixture
def servers() -> Iterator[SentinelRedis]:
    with SentinelRedis() as servers:
        yield servers


@pytest.mark.long
@pytest.mark.faults(row=4)
@pytest.mark.parametrize(
    ("store", "fault"),
    [("redis-sentinel", "kill"), ("redis-sentinel", "pause"), ("redis-cluster", "kill")],
)
def test_acquisitions_resume_within_a_second_of_the_failover(
    connect: Connect, store: str, fault: str
) -> None:
    """Only the sales of the dead node wait for it: tests/high_availability."""
    tokens, failed, promoted = list[int](), 0, 0.0

    def pair() -> bool:
        nonlocal failed
        one = claim()
        try:
            grant = backend.acquire(one, 0.5)
            assert grant
            tokens.append(grant.token)
            backend.release(one, grant.token)
        except LockUnavailable:
            failed += 1
            return False
        return True

    def is_promoted() -> bool:
        if is_cluster:
            return "master" in servers.replicas[number].ask("ROLE")
        return servers.names(servers.replica)

    with SentinelRedis() if store == "redis-sentinel" else RedisCluster() as servers:
        backend, number = connect(servers.url), slot_of(claim().name) * 3 // SLOTS
        is_cluster = isinstance(servers, RedisCluster)
        master = servers.masters[number] if is_cluster else servers.master
        for _ in range(20):
            assert pair()
        getattr(master, fault)()
        deadline = time.monotonic() + WAIT_TIMEOUT
        while not (resumed := pair()) and time.monotonic() < deadline:
            if not promoted and is_promoted():
                promoted = time.monotonic()
        assert resumed
        assert time.monotonic() - (promoted or time.monotonic()) < 1 + SLACK
        assert failed
        if fault == "pause":
            master.resume()
        for _ in range(20):
            assert pair()
    assert tokens == sorted(set(tokens))


@pytest.mark.long
def test_a_demoted_master_is_left(servers: SentinelRedis, connect: Connect) -> None:
    """Threads and tasks follow; the same backend had its connections to the old master."""
    backend = connect(servers.url)
    first = take(backend)
    backend.release(first.claim, first.token)

    async def tasks() -> None:
        lock = store_of(backend).lock("task", timeout=5)
        async with lock:
            pass
        servers.sentinels[0].ask("SENTINEL FAILOVER locks")
        async with asyncio.timeout(WAIT_TIMEOUT):
            while not servers.names(servers.replica):
                await asyncio.sleep(0.01)
        async with lock as lease:
            assert lease.token > first.token
            owners = [held.owner for held in backend.inspect()]
            assert owners == [lease.claim.owner]

    asyncio.run(tasks())
    with client.Redis.from_url(servers.replica.url) as raw:
        assert raw.info("replication")["role"] == "master"
    assert take(backend).token > first.token


def test_a_replica_that_a_sentinel_names_is_refused(connect: Connect) -> None:
    """The Sentinels have not noticed yet that their master was demoted."""
    with SentinelRedis() as servers, client.Redis.from_url(servers.master.url) as raw:
        backend = connect(servers.url)
        backend.probe()
        backend.close()
        raw.replicaof("127.0.0.1", "1")
        with pytest.raises(LockUnavailable, match="is not the master"):
            backend.probe()


def test_stalled_sentinels_cost_bounded_time(servers: SentinelRedis, connect: Connect) -> None:
    first, second, third = servers.sentinels
    for stalled in (first, second):
        stalled.pause()
    with within(BOUND):
        connect(servers.url).probe()
    third.pause()
    backend = connect(servers.url, CONNECT_TIMEOUT=0.5)
    with within(BOUND), pytest.raises(LockUnavailable, match="No master of 'locks' found"):
        backend.probe()
    for stalled in servers.sentinels:
        stalled.resume()
    until_available(backend.probe)
