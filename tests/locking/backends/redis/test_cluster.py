"""A Redis Cluster: names in slots, slots that move, and nodes that fail."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from devservers import HOST
from devservers.faults.waiting import WAIT_TIMEOUT
from locking import LockLost, LockUnavailable
from locking.backends.redis.cluster import slot_of, tagged, tags
from locking.claims import Claim
from locking.testing.calls import until_available, within
from tests.devservers.redis_groups import SLOTS, ClusterNode, RedisCluster
from tests.locking.backends.redis.redis_tools import Connect, connect, take, waiters, waiting
from tests.locking.calls import store_of

__all__ = ["connect"]


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
