"""One Redis under faults, FAULTS rows 1, 8, 10 and 17, and the check of the store.

The contract has the faults of all stores.
"""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis as client

from devservers import Redis
from devservers.faults.clock import Clock
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost, LockUnavailable
from locking.backends.redis.backend import RedisBackend
from locking.backends.redis.pool import redis_breaker
from locking.backends.redis.scripts import RELEASE
from locking.claims import Claim
from locking.names import SEMAPHORE_PREFIX
from locking.testing.calls import until_available, within
from tests.devservers.faults.interception import InterceptingProxy
from tests.devservers.redis_groups import RedisCluster, Sentinel, SentinelRedis
from tests.locking.backends.redis.redis_tools import (
    BOUND,
    Connect,
    claim,
    connect,
    proxy,
    server,
    take,
    waiting,
)

__all__ = ["connect", "proxy", "server"]
DOWN = "127.0.0.1:1"

LONG = 3 * WAIT_TIMEOUT
"""A ttl, so that a lock which is free within a wait of the test was released and did not expire."""


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


def test_lost_reply_to_a_waiter_leaves_one_queue_entry(
    server: Redis, connect: Connect, proxy: InterceptingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is granted the lock by a message, and does not find it free when it asks again."""
    monkeypatch.setattr("locking.backends.redis.requests.MAX_SLEEP", LONG)
    backend, direct, holder = connect(f"redis://{proxy.url}/0"), connect(server.url), claim(LONG)
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
    backend, holder, waiter = connect(server.url, SOCKET_TIMEOUT=1.0), claim(), claim()
    backend.acquire(holder, 0)
    with ThreadPoolExecutor(1) as pool:
        queued = pool.submit(backend.acquire, waiter, LONG)
        until(lambda: waiting(backend) == 1, "queueing")
        server.pause()
        waiter.cancel()
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


def queue_length(raw: client.Redis, name: str) -> int:
    return raw.llen(f"lock:{{{name}}}:waiters")


@pytest.mark.faults(row=1, backend="redis", fired="connections that stay half-open")
@pytest.mark.parametrize("slots", [None, 1], ids=["lock", "semaphore"])
def test_lost_machine_with_many_waiters_costs_two_leases(
    server: Redis, proxy: InterceptingProxy, connect: Connect, slots: int | None
) -> None:
    """Six processes of one machine wait. It is lost: their connections stay open at the server."""
    lost, direct = connect(f"redis://{proxy.url}/0"), connect(server.url)
    name = f"{SEMAPHORE_PREFIX if slots else ''}n"

    def ask(owner: str, ttl: float) -> Claim:
        asked = Claim(name=name, owner=owner, ttl=ttl)
        asked.slots = slots
        return asked

    holder, last = ask("here:1:1:a", 60.0), ask("here:2:1:b", 60.0)
    granted: list[str] = []
    grant = direct.acquire(holder, 0)
    assert grant
    with (
        client.Redis.from_url(server.url, decode_responses=True) as raw,
        ThreadPoolExecutor(7) as pool,
    ):
        claims = [ask(f"lost:{number}:1:c", 0.6) for number in range(6)]
        calls: list[tuple[object, Claim]] = [*((lost, one) for one in claims), (direct, last)]
        waits = []
        for number, (backend, one) in enumerate(calls, 1):
            waits.append(pool.submit(backend.acquire, one, WAIT_TIMEOUT))
            until(lambda number=number: queue_length(raw, name) == number + (not slots), "queueing")
        proxy.hold()
        released = time.monotonic()
        direct.release(holder, grant.token)

        def is_served() -> bool:
            granted.extend(held.owner for held in direct.holders(name))
            return waits[-1].done()

        until(is_served, "the waiter of another machine")
        assert waits[-1].result() is not None
        dead = {owner for owner in granted if owner.startswith("lost:")}
        waited = time.monotonic() - released
        assert waited > claims[0].ttl, "no grant went to the lost machine: the test proves nothing"
        assert len(dead) <= 2
        direct.release(last, 0)
        proxy.cut(refuse=True)
        proxy.resume()
        for wait in waits[:-1]:
            with pytest.raises(LockUnavailable):
                wait.result(WAIT_TIMEOUT)


def test_killed_process_costs_only_its_own_waiters_their_places(
    server: Redis, connect: Connect
) -> None:
    """The control: only a machine whose connections stay open is taken for lost."""
    backend, order = connect(server.url), list[str]()

    def wait(asked: Claim) -> None:
        assert backend.acquire(asked, WAIT_TIMEOUT)
        order.append(asked.owner)
        backend.release(asked, 0)

    backend.acquire(Claim(name="n", owner="one:1:1:a", ttl=60.0), 0)  # never released
    late = "one:1:2:f"  # of the process whose grant ended: it may be stopped, and queues again
    owners = [late, "one:2:1:b", "two:1:1:c", "one:3:1:d", "two:2:1:e"]
    with ThreadPoolExecutor(5) as pool:
        waits = []
        for number, owner in enumerate(owners, 1):
            waits.append(pool.submit(wait, Claim(name="n", owner=owner, ttl=30.0)))
            until(lambda number=number: waiting(backend) == number, "queueing")
        with client.Redis.from_url(server.url) as raw:
            raw.delete("lock:{n}")  # as the end of the lease, at a time when all wait
        # Who notices it is known to run, and so is its process.
        assert not backend.acquire(Claim(name="n", owner="three:1:1:g", ttl=30.0), 0)
        for one in waits:
            one.result(WAIT_TIMEOUT)
    assert order == [*owners[1:], late]


def test_extension_gives_up_while_the_grant_still_lasts(
    server: Redis, proxy: InterceptingProxy, connect: Connect
) -> None:
    """SOCKET_TIMEOUT is longer than the ttl. One late reply does not stop other locks, either."""
    url = f"redis://{proxy.url}/0"
    backend, short = connect(url, SOCKET_TIMEOUT=60.0), claim(ttl=8.0)
    grant = backend.acquire(short, 0)
    proxy.hold_replies()
    with ThreadPoolExecutor(1) as pool, pytest.raises(LockUnavailable, match="within 2 s"):
        pool.submit(backend.extend, short, grant.token, 8.0).result(WAIT_TIMEOUT)
    assert not redis_breaker(url).is_open
    proxy.resume()
    assert backend.extend(short, grant.token, 8.0) > grant.deadline


def test_clock_that_is_a_century_ahead_does_not_exhaust_the_tokens(
    server: Redis, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token has 63 bits, which last until the year 2112."""
    backend, tokens = connect(server.url), list[int]()

    def acquire() -> None:
        asked = claim()
        grant = backend.acquire(asked, 0)
        assert grant
        backend.release(asked, grant.token)
        tokens.append(grant.token)

    acquire()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: 6_000_000_000 * 10**9)
        acquire()
    acquire()
    assert tokens == sorted(set(tokens))
    assert tokens[-1] < 1 << 62


@pytest.mark.faults(row=10, backend="redis")
@pytest.mark.parametrize("waits", [False, True], ids=["free", "waiting"])
def test_grant_whose_reply_is_lost_is_withdrawn(
    waits: bool, server: Redis, proxy: InterceptingProxy, connect: Connect
) -> None:
    """That of a lock that was free, and that of a waiter whose connection breaks."""
    direct = connect(server.url)
    far = connect(f"redis://{proxy.url}/0", SOCKET_TIMEOUT=10.0, CONNECT_TIMEOUT=10.0)
    until_available(lambda: take(far).release())  # sends the scripts
    asked, holder = claim(ttl=LONG), take(direct, ttl=LONG) if waits else None
    with ThreadPoolExecutor(1) as pool:
        if holder is None:
            proxy.hold_replies()
        waiter = pool.submit(far.acquire, asked, LONG if waits else 0)
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
    until(lambda: not direct.inspect(), "the lock being released")


def test_break_whose_reply_is_lost_is_reported_as_done(
    server: Redis, proxy: InterceptingProxy, connect: Connect
) -> None:
    far = connect(f"redis://{proxy.url}/0", SOCKET_TIMEOUT=10.0)
    take(far).release()  # sends the script
    held = take(connect(server.url))
    proxy.losing = re.compile(RELEASE.sha.encode())
    assert far.break_lock("n")
    assert proxy.lost_replies == 1
    with pytest.raises(LockLost):
        held.release()


def assert_refused(backend: RedisBackend, word: str) -> None:
    """Check for an error that names its cause, in bounded time, with and without a wait."""
    for timeout in (0, 0.5):
        with within(BOUND), pytest.raises(LockUnavailable, match=word) as caught:
            backend.acquire(claim(), timeout)
        assert caught.value.__cause__ is not None


@pytest.mark.faults(row=17, backend="redis", fired="refusal by CONFIG SET and REPLICAOF")
def test_error_replies_never_grant(server: Redis, connect: Connect) -> None:
    with client.Redis.from_url(server.url) as raw:
        for setting, value, usual, word in (
            ("min-replicas-to-write", 1, 0, "NOREPLICAS"),
            ("maxmemory", 1, 0, "OOM"),
        ):
            raw.config_set(setting, value)
            assert_refused(connect(server.url), word)
            raw.config_set(setting, usual)
        lease = take(connect(server.url))
        raw.config_set("maxmemory", 1)
        lease.backend.extend(lease.claim, lease.token, 60)
        lease.backend.release(lease.claim, lease.token)  # a held lock can be released
        raw.config_set("maxmemory", 0)
        known = connect(server.url)
        known.probe()
        raw.replicaof("127.0.0.1", "1")
        assert_refused(known, "READONLY")
        assert not known.pool.take(), "after a failover the address may be that of another server"
        raw.config_set("replica-serve-stale-data", "no")
        assert_refused(connect(server.url), "MASTERDOWN")
        raw.replicaof("NO", "ONE")
        raw.set("lock:{n}", "not a lock")
        assert_refused(connect(server.url), "WRONGTYPE")
        raw.delete("lock:{n}")
        raw.config_set("requirepass", "secret")
        assert_refused(connect(server.url), "authenticat")
        assert_refused(connect(server.url.replace("//", "//:wrong@")), "password")
        raw.config_set("requirepass", "")
        assert not raw.exists("lock:{n}")
        assert take(connect(server.url))


@pytest.mark.faults(row=17, backend="redis", fired="maxclients reached")
def test_too_many_connections(connect: Connect) -> None:
    with Redis(config=["--maxclients", "2"]) as server:
        with ExitStack() as stack:
            for _ in range(2):
                raw = stack.enter_context(client.Redis.from_url(server.url))
                raw.ping()
            assert_refused(connect(server.url), "max number of clients|onnection")
        backend = connect(server.url)
        assert until_available(lambda: take(backend)), "the server has noticed the ends"


def test_check_says_what_makes_a_server_unfit(
    redis_server: Redis, redis_sentinel: SentinelRedis, redis_cluster: RedisCluster
) -> None:
    """A server that is down cannot be asked."""
    plain, sentinels, cluster = redis_server.url, redis_sentinel.url, redis_cluster.url
    with (
        Redis(config=["--requirepass", "secret"]) as closed,
        Redis(replica_of=redis_server) as replica,
        Sentinel() as sentinel,
    ):
        cases = dict.fromkeys((plain, sentinels, cluster, f"redis://{DOWN}/0"), "")
        cases |= {f"redis+sentinel://{DOWN}/locks": "", closed.url: "E022"}
        for login, id_ in ((":secret", ""), (":wrong", "E022"), ("absent:secret", "E022")):
            cases[closed.url.replace("//", f"//{login}@")] = id_
        cases |= {
            replica.url: "E023 .* is a read-only replica",
            sentinel.url: "E023 .* is a Sentinel",
            redis_cluster.masters[0].url: r"E023 .* write redis\+cluster://",
            plain.replace("redis://", "redis+cluster://"): "E023 .* is no node of a Cluster",
            sentinels.replace("/locks", "/other"): "E023 .*'other'",
        }
        for url, expected in cases.items():
            found = RedisBackend.check_store("redis", {"LOCATION": url})
            text = "".join(f"{one.id} {one.msg}" for one in found)
            assert bool(text) is bool(expected), (url, text)
            assert re.search(expected, text), (url, text)
