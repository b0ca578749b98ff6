"""Redis as a group of servers: replicas that confirm, a master behind Sentinels, a Cluster."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import redis as client

from devservers import HOST, Redis
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost, LockUnavailable
from locking.backends.redis.backend import RedisBackend
from locking.backends.redis.cluster import Cluster, slot_of, tagged, tags
from locking.claims import Claim
from locking.testing.calls import acquire_and_release, until_available, within
from tests.devservers.redis_groups import SLOTS, ClusterNode, Node, RedisCluster, SentinelRedis
from tests.fault_rows import SLACK
from tests.locking.backends.redis.redis_tools import (
    BOUND,
    Connect,
    claim,
    connect,
    take,
    waiters,
    waiting,
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
def test_extension_or_take_over_counts_once_the_replica_has_it(
    replica: Redis, backend: RedisBackend
) -> None:
    giver, taker = claim(ttl=60.0), claim(ttl=60.0)
    token = backend.acquire(giver, 0).token
    backend.extend(giver, token, 600.0)
    with client.Redis.from_url(replica.url) as raw:
        assert raw.pttl("lock:{n}") > 500_000
    backend.set_depth(giver, token, 0)
    replica.pause()
    for call in (
        lambda: backend.extend(giver, token, 600.0),
        lambda: backend.take_over(taker, giver.owner, token),
    ):
        with within(BOUND), pytest.raises(LockUnavailable, match="0 of 1 REPLICAS"):
            call()
    replica.resume()
    grant = backend.take_over(taker, giver.owner, token)
    assert owner_at(replica) == taker.owner
    backend.release(taker, grant.token)


def test_enough_replicas_of_sentinels_and_of_a_cluster(
    redis_sentinel: SentinelRedis, redis_cluster: RedisCluster, connect: Connect
) -> None:
    for servers in (redis_sentinel, redis_cluster):
        lease = take(connect(servers.url, REPLICAS=1))
        lease.backend.release(lease.claim, lease.token)
        with pytest.raises(LockUnavailable, match="1 of 2 REPLICAS"):
            take(connect(servers.url, REPLICAS=2))


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
    """`tests/high_availability` shows that in a Cluster only the sales of the dead node wait."""
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


@pytest.fixture
def own_cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as servers:
        yield servers


class Move:
    """Moves the slot of a name from its master to the next one, as `redis-cli --cluster` does."""

    def __init__(self, servers: RedisCluster, name: str) -> None:
        self.slot = slot_of(tagged(name))
        index = self.slot * 3 // SLOTS
        self.source, self.target = servers.masters[index], servers.masters[(index + 1) % 3]

    def _set(self, node: ClusterNode, state: str, other: ClusterNode) -> None:
        node.ask(f"CLUSTER SETSLOT {self.slot} {state} {other.id}")

    def begin(self) -> None:
        self._set(self.target, "IMPORTING", self.source)
        self._set(self.source, "MIGRATING", self.target)

    def keys(self, *keys: str) -> None:
        names = " ".join(keys)
        self.source.ask(f'MIGRATE {HOST} {self.target.port} "" 0 5000 KEYS {names}')

    def end(self) -> None:
        for node in (self.target, self.source):
            self._set(node, "NODE", self.target)


@pytest.mark.parametrize("name", ["}x", "{", "{}", "a}b", "{a}{b}", "}", "x"])
def test_all_keys_of_a_name_with_braces_are_in_one_slot(
    redis_cluster: RedisCluster, connect: Connect, name: str
) -> None:
    backend = connect(redis_cluster.url)
    assert len({slot_of_key(key) for key in backend.keys(name)}) == 1
    with store_of(backend).lock(name, timeout=5) as lease:
        assert (name, lease.token) in {(held.name, held.token) for held in backend.inspect()}
        assert not store_of(connect(redis_cluster.url)).lock(name).acquire(timeout=0.05)
    broken = store_of(backend).lock(name, renew=False)
    assert broken.acquire(timeout=5)
    assert backend.break_lock(name)
    assert name not in {held.name for held in backend.inspect()}
    with pytest.raises(LockLost):
        broken.release()


def test_each_slot_has_a_tag() -> None:
    assert sorted(tags()) == list(range(SLOTS))
    assert all(slot_of(tag) == slot for slot, tag in tags().items())


def slot_of_key(key: str) -> int:
    """Return the slot of a key by the rules of the Cluster specification."""
    begin = key.index("{") + 1
    end = key.index("}", begin)
    assert end > begin, "an empty tag is none"
    return slot_of(key[begin:end])


def test_a_slot_that_moved_is_followed(own_cluster: RedisCluster, connect: Connect) -> None:
    backend, move = connect(own_cluster.url), Move(own_cluster, "n")
    first = take(backend)
    stale = connect(own_cluster.url)
    stale.extend(first.claim, first.token, 60)
    for node in own_cluster.nodes:  # from here on, redirections name the port alone
        node.ask("CONFIG SET cluster-preferred-endpoint-type unknown-endpoint")
    move.begin()
    move.keys(*backend.keys("n"))
    # One key has an owner there: ASK. Three keys, of which the queue is missing: TRYAGAIN.
    backend.extend(first.claim, first.token, 60)
    assert move.target.ask(f"CLUSTER COUNTKEYSINSLOT {move.slot}") == ":2\r\n"
    with ThreadPoolExecutor(1) as pool:
        release = pool.submit(backend.release, first.claim, first.token)
        move.end()
        release.result(WAIT_TIMEOUT)
    second = take(connect(own_cluster.url))
    assert second.token > first.token
    with pytest.raises(LockLost):  # though it is redirected, for `stale` has the old map
        stale.release(first.claim, first.token)
    backend.release(second.claim, second.token)
    assert not backend.inspect()


def test_redirection_without_a_host_leads_to_the_same_one() -> None:
    cluster = Cluster("redis+cluster://10.0.0.7:7001/")
    asked = Mock(url="redis://10.0.0.7:7001/0")
    assert cluster.redirected(asked, ":7002") == "redis://10.0.0.7:7002/"


def test_calls_to_a_stopped_cluster_fail_at_once(
    own_cluster: RedisCluster, connect: Connect
) -> None:
    """A single thread asks the nodes in turn, which takes seconds while none replies."""
    backend = connect(own_cluster.url)
    take(backend).release()

    def fail(number: int) -> None:
        with pytest.raises(LockUnavailable):
            backend.acquire(Claim(name=f"n{number}", ttl=30.0), 0)

    for node in own_cluster.nodes:
        node.pause()
    for number in range(2):  # the first timeouts of a node, and of the map of the slots
        fail(number)
    with within(WAIT_TIMEOUT), ThreadPoolExecutor(20) as pool:
        list(pool.map(fail, range(100)))
    for node in own_cluster.nodes:
        node.resume()
    until_available(lambda: take(backend).release())


def test_waiter_of_a_moved_slot_believes_the_lock_only(
    own_cluster: RedisCluster, connect: Connect
) -> None:
    """The new node delivers messages through the old one, but takes its waiters for gone."""
    backend, move = connect(own_cluster.url), Move(own_cluster, "n")
    holder, waiter = take(backend), Claim(name="n", ttl=30.0)
    with waiters(backend, waiter) as (waits,):
        move.begin()
        move.keys(*backend.keys("n"))
        move.end()
        other = connect(own_cluster.url)
        assert waiting(other) == 1
        other.release(holder.claim, holder.token)
        grant = waits.result(WAIT_TIMEOUT)
    assert [(held.owner, held.token) for held in other.inspect()] == [(waiter.owner, grant.token)]
    assert grant.token > holder.token
