"""The queue of the Redis lock: order, cost, early ends of a wait, connections."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis as client

from devservers import Redis
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking.backends.redis.backend import RedisBackend
from locking.claims import Claim
from locking.names import SEMAPHORE_PREFIX
from locking.testing.calls import acquire_and_release
from locking.testing.contract_faults import LONG
from tests.locking.backends.redis.redis_tools import claim, waiters, waiting
from tests.locking.calls import store_of


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with Redis() as server:
        yield server


@pytest.fixture
def backend(server: Redis, raw: client.Redis) -> Iterator[RedisBackend]:
    backend = RedisBackend("redis", location=server.url)
    yield backend
    backend.close()


@pytest.fixture
def raw(server: Redis) -> Iterator[client.Redis]:
    with client.Redis.from_url(server.url, decode_responses=True) as raw:
        raw.flushall()
        yield raw


def calls(raw: client.Redis) -> int:
    """Return the number of scripts that clients have run."""
    stats = raw.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))


@pytest.mark.parametrize("slots", [None, 2])
def test_grant_expires_after_the_holders_deadline(
    backend: RedisBackend, raw: client.Redis, slots: int | None
) -> None:
    """Redis measures the ends of grants in whole milliseconds."""
    for number in range(20):
        asked = Claim(name=f"{SEMAPHORE_PREFIX if slots else ''}{number}", ttl=30.0)
        asked.slots = slots
        ends = [backend.acquire(asked, 0).deadline, backend.extend(asked, 0, 30.0)]
        ends.append(backend.acquire(asked, 0).deadline)  # the reply of the first was lost
        epoch = time.time() - time.monotonic()
        key, *_, holders = backend.keys(asked.name)
        expires_at = raw.zscore(holders, asked.owner) if slots else raw.pexpiretime(key)
        assert max(ends) + epoch < expires_at / 1000


def test_renewal_keeps_a_longer_grant_of_another_holder(
    backend: RedisBackend, raw: client.Redis
) -> None:
    longer, shorter = (Claim(name=f"{SEMAPHORE_PREFIX}n", ttl=ttl) for ttl in (600.0, 6.0))
    for one in (longer, shorter):
        one.slots = 2
        assert backend.acquire(one, 0)
    backend.extend(shorter, 0, 6.0)
    key, *_, holders = backend.keys(longer.name)
    assert min(raw.pttl(key), raw.pttl(holders)) > 500_000


@pytest.mark.faults(row="F7", backend="redis", fired="waiters counted")
def test_contended_lock_costs_two_commands(backend: RedisBackend, raw: client.Redis) -> None:
    count = 64
    holder, others = claim(), [claim(ttl=600) for _ in range(count)]  # they ask once
    for _ in range(2):  # the first loads the scripts
        backend.acquire(holder, 0)
        backend.release(holder, 0)
    backend.acquire(holder, 0)
    before = calls(raw)
    with waiters(backend, *others) as served:
        backend.release(holder, 0)
        for one, grant in zip(others, served, strict=True):
            assert grant.result(WAIT_TIMEOUT) is not None
            backend.release(one, 0)
    assert calls(raw) - before == 2 * count + 1, (
        "one to queue and one to release for each waiter, one for the holder"
    )


def test_names_that_are_used_once_leave_no_key(backend: RedisBackend, raw: client.Redis) -> None:
    """Also after a wait; each name kept 209 bytes for an hour."""
    with ThreadPoolExecutor(1) as pool:
        for number in range(20):
            with store_of(backend).lock(f"once:{number}"):
                next_one = pool.submit(acquire_and_release, store_of(backend), f"once:{number}")
                until(lambda: any(held.waiters for held in backend.inspect()), "the waiter")
            assert next_one.result(WAIT_TIMEOUT)
    assert set(raw.scan_iter()) == {"lock:clock"}
    assert 0 < raw.ttl("lock:clock") <= 3601


def test_cancelled_wait_ends_at_once(backend: RedisBackend, monkeypatch) -> None:
    """Without an interruption, the waiter would notice when it asks again."""
    monkeypatch.setattr("locking.backends.redis.requests.MAX_SLEEP", LONG)
    asked = Claim(name="n", ttl=LONG)
    with store_of(backend).lock("n", ttl=LONG), ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(backend.acquire, asked, LONG)
        until(lambda: any(held.waiters for held in backend.inspect()), "the waiter")
        asked.cancel()
        assert waiter.result(WAIT_TIMEOUT) is None


def test_waiter_keeps_its_place_after_a_lost_connection(
    backend: RedisBackend, raw: client.Redis
) -> None:
    holder, first, second = claim(), claim(), claim()
    backend.acquire(holder, 0)
    with waiters(backend, first, second) as (one, other):
        assert raw.client_kill_filter(_type="pubsub", skipme=True) >= 2
        until(lambda: raw.pubsub_numpat() == 0 and len(raw.pubsub_channels()) >= 2, "new ones")
        assert waiting(backend) == 2
        backend.release(holder, 0)
        assert one.result(WAIT_TIMEOUT) is not None
        assert not other.done()
        backend.release(first, 0)
        assert other.result(WAIT_TIMEOUT) is not None
    backend.release(second, 0)
