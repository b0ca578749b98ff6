"""FAULTS 3, 4, 5, 8, 10, 11, 17 and 18 on one Redis, at the level of the lock.

XF in a docstring: two holders are expected, the test counts only if it saw both, and it shows the
token that tells them apart.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import redis as client

from loadtest.faults import PATIENCE, until
from loadtest.faults.clock import Clock
from loadtest.servers import Redis
from locking import LockLost, LockUnavailable
from locking.backends.base import Claim
from locking.backends.redis import RedisBackend
from locking.lease import Lease, new_owner
from tests.locking.redlock_masters import Proxy

BOUND = 8.0
"""Seconds in which a Redis that is silent or refuses must have been given up, on a slow machine."""


@pytest.fixture
def server() -> Iterator[Redis]:
    with Redis() as server:
        yield server


@pytest.fixture
def connect() -> Iterator[Callable[..., RedisBackend]]:
    """Backends as other processes would have them: none knows the others' tokens."""
    with ExitStack() as stack:

        def make(url: str, **options: Any) -> RedisBackend:
            backend = RedisBackend("redis", location=url, options=options)
            stack.callback(backend.close)
            return backend

        yield make


Connect = Callable[..., RedisBackend]


def claim(ttl: float = 30.0) -> Claim:
    return Claim(name="n", owner=new_owner(), ttl=ttl)


def take(backend: RedisBackend, ttl: float = 30.0) -> Lease:
    """A lease that nobody renews."""
    lock = backend.lock("n", ttl=ttl, renew=False)
    assert lock.acquire(timeout=PATIENCE)
    assert lock.lease is not None
    return lock.lease


def both_believe(first: Lease, second: Lease) -> None:
    """The overlap was seen, and whoever is guarded by the tokens refuses the first."""
    assert not first.lost
    assert not second.lost
    assert second.token > first.token


# --- what Redis can lose --------------------------------------------------------------------


@pytest.mark.faults(row=4, backend="redis", xf=True)
def test_a_promoted_replica_that_missed_the_lock(connect: Connect) -> None:
    """XF, row 4: the tokens still grow."""
    with (
        Redis() as master,
        Redis(replica_of=master) as replica,
        client.Redis.from_url(replica.url) as promoted,
    ):
        before = take(connect(master.url))
        before.backend.release(before.claim, before.token)
        until(lambda: promoted.exists("lock:{n}:clock"), "replication")
        promoted.replicaof("127.0.0.1", "1")  # the cut
        first = take(connect(master.url))
        master.kill()
        promoted.replicaof("NO", "ONE")
        second = take(connect(replica.url))
    both_believe(first, second)
    assert first.token > before.token


@pytest.mark.faults(row=5, backend="redis", xf=True)
def test_a_crash_without_persistence(server: Redis, connect: Connect) -> None:
    """XF, row 5: the tokens still grow, though nothing remembers the last one."""
    first = take(connect(server.url))
    server.kill()
    server.start()
    second = take(connect(server.url))
    both_believe(first, second)
    with pytest.raises(LockLost):
        first.backend.release(first.claim, first.token)


@pytest.mark.faults(row=5, backend="redis", xf=True)
@pytest.mark.parametrize("step", [-60, 60])
def test_a_crash_and_a_clock_that_steps(step: int, tmp_path: Path, connect: Connect) -> None:
    """XF: the clients' clocks make up for the server's."""
    clock, server = Clock(tmp_path), Redis()
    clock.drive(server)
    with server:
        first = take(connect(server.url))
        server.kill()
        clock.shift(step)
        server.start()
        both_believe(first, take(connect(server.url)))


def test_an_observed_token_is_never_given_again(server: Redis, connect: Connect) -> None:
    """What the stock row has seen counts, even when every clock is behind it."""
    backend = connect(server.url)
    seen = take(backend).token + (3600 * 1_000_000 // 16 << 15)
    backend.break_lock("n")
    other = connect(server.url)
    other.observe("n", seen)
    assert take(other).token > seen


# --- clocks -----------------------------------------------------------------------------------


@pytest.mark.faults(row=8, backend="redis", xf=True)
def test_redis_clock_forward_ends_leases_early(tmp_path: Path, connect: Connect) -> None:
    """XF, row 8."""
    clock, server = Clock(tmp_path), Redis()
    clock.drive(server)
    with server:
        first = take(connect(server.url))
        clock.shift(31)
        both_believe(first, take(connect(server.url)))


@pytest.mark.faults(row=8, backend="redis")
def test_redis_clock_back_does_not_prolong_a_dead_holders_lease(
    tmp_path: Path, connect: Connect
) -> None:
    """Row 8: waits stay bounded, and tokens grow."""
    clock, server = Clock(tmp_path), Redis()
    clock.drive(server)
    with server:
        first = take(connect(server.url), ttl=1.0)
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(take, connect(server.url))
            until(lambda: [h.waiters for h in first.backend.inspect()] == [1], "queueing")
            clock.shift(-60)
            assert first.backend.inspect()[0].expires_in > 30, "the clock did not step"  # type: ignore[operator]
            second = waiter.result(PATIENCE)
    assert second.token > first.token


def test_a_hand_over_is_believed_in_spite_of_the_servers_clock(
    tmp_path: Path, connect: Connect
) -> None:
    for step in (-60, 60):
        folder = tmp_path / str(step)
        folder.mkdir()
        clock, server = Clock(folder), Redis()
        clock.drive(server)
        with server, ThreadPoolExecutor(1) as pool:
            backend = connect(server.url)
            holder = claim(ttl=600)
            backend.acquire(holder, 0)
            waiter = pool.submit(take, connect(server.url))
            until(lambda b=backend: [h.waiters for h in b.inspect()] == [1], "queueing")
            clock.shift(step)
            backend.release(holder, 0)
            lease = waiter.result(PATIENCE)
            assert not lease.lost
            assert 20 < lease.remaining <= 30


# --- answers that are lost, late or errors ----------------------------------------------------


class Cutter(Proxy):
    """A proxy that, in the mode "cut", loses one answer with its connection, then lets all pass."""

    cuts = 0

    def _answer(self, master: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := master.recv(65536):
                if self.mode == "cut":
                    self.mode, self.cuts = "pass", self.cuts + 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)


@pytest.fixture
def proxy(server: Redis) -> Iterator[Cutter]:
    proxy = Cutter(server.url)
    yield proxy
    proxy.close()


@pytest.mark.faults(row=10, backend="redis", fired="answer cut off")
def test_lost_answers_are_resolved_by_reading_the_owner_back(
    server: Redis, connect: Connect, proxy: Cutter
) -> None:
    """Row 10: to take, to extend, to re-enter and to release; the server has done each."""
    backend, direct, asked = connect(proxy.url), connect(server.url), claim()
    grant = backend.acquire(asked, 0)  # teaches the scripts
    assert grant is not None
    backend.release(asked, grant.token)

    proxy.mode = "cut"
    asked = claim()
    grant = backend.acquire(asked, 0)
    assert grant is not None
    (held,) = direct.inspect()
    assert (held.owner, held.token) == (asked.owner, grant.token)
    proxy.mode = "cut"
    backend.extend(asked, grant.token, 60)
    (held,) = direct.inspect()
    assert held.expires_in is not None
    assert held.expires_in > 50
    proxy.mode = "cut"
    backend.recount(asked, grant.token, 2)
    assert [held.count for held in direct.inspect()] == [2]
    proxy.mode = "cut"
    backend.release(asked, grant.token)
    assert not direct.inspect()
    assert proxy.cuts == 4


def test_a_lost_answer_to_a_waiter_leaves_one_place(
    server: Redis, connect: Connect, proxy: Cutter
) -> None:
    backend, direct, holder = connect(proxy.url), connect(server.url), claim()
    direct.acquire(holder, 0)
    backend.probe()
    proxy.mode = "cut"
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(take, backend)
        until(lambda: proxy.cuts and [held.waiters for held in direct.inspect()] == [1], "waiting")
        direct.release(holder, 0)
        lease = waiter.result(PATIENCE)
    assert [(held.owner, held.waiters) for held in direct.inspect()] == [(lease.owner, 0)]


@pytest.mark.faults(row=11, backend="redis", xf=True, fired="command held back")
def test_a_command_that_arrives_long_after_its_time(
    server: Redis, connect: Connect, proxy: Cutter
) -> None:
    """XF, row 11: nobody's grant, that ends with its ttl, and the next token is above it."""
    backend, direct = connect(proxy.url, SOCKET_TIMEOUT=0.3), connect(server.url)
    ghost = claim(ttl=1.0)
    grant = backend.acquire(ghost, 0)
    assert grant is not None
    backend.release(ghost, grant.token)
    proxy.mode = "hold"
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(backend.acquire, ghost, 0)
        with pytest.raises(LockUnavailable):
            late.result(PATIENCE)
    assert not direct.inspect()
    proxy.let_go()
    until(direct.inspect, "the late command arriving")
    (held,) = direct.inspect()
    assert held.owner == ghost.owner
    assert held.token is not None
    started = time.monotonic()
    assert take(direct).token > held.token
    assert time.monotonic() - started < 1.0 + 1.0


def test_a_silent_redis_is_given_up(server: Redis, connect: Connect) -> None:
    backend = connect(server.url, SOCKET_TIMEOUT=0.3, CONNECT_TIMEOUT=0.3)
    lease = take(backend)
    waiter = claim()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(backend.acquire, waiter, 1.0)
        until(lambda: [held.waiters for held in backend.inspect()] == [1], "queueing")
        server.pause()
        try:
            started = time.monotonic()
            for call in (
                backend.probe,
                backend.inspect,
                lambda: backend.acquire(claim(), 5),
                lambda: backend.release(lease.claim, lease.token),
                lambda: backend.extend(lease.claim, lease.token, 30),
                lambda: waiting.result(PATIENCE),
            ):
                with pytest.raises(LockUnavailable) as caught:
                    call()
                assert caught.value.__cause__ is not None
            assert time.monotonic() - started < BOUND
        finally:
            server.resume()
    backend.probe()


# --- refusals: row 17 -------------------------------------------------------------------------


def refuses(backend: RedisBackend, word: str) -> None:
    """No grant, an error that names its cause, in bounded time, at once or after a wait."""
    for timeout in (0, 0.5):
        started = time.monotonic()
        with pytest.raises(LockUnavailable, match=word) as caught:
            backend.acquire(claim(), timeout)
        assert caught.value.__cause__ is not None
        assert time.monotonic() - started < BOUND


@pytest.mark.faults(row=17, backend="redis")
def test_settings_under_which_redis_refuses(server: Redis, connect: Connect) -> None:
    with client.Redis.from_url(server.url) as raw:
        for setting, value, usual, word in (
            ("min-replicas-to-write", 1, 0, "NOREPLICAS"),
            ("maxmemory", 1, 0, "OOM"),
        ):
            raw.config_set(setting, value)
            refuses(connect(server.url), word)
            raw.config_set(setting, usual)
        lease = take(connect(server.url))
        raw.config_set("maxmemory", 1)
        lease.backend.extend(lease.claim, lease.token, 60)
        lease.backend.release(lease.claim, lease.token)  # what is held can be given back
        raw.config_set("maxmemory", 0)
        raw.replicaof("127.0.0.1", "1")
        refuses(connect(server.url), "READONLY")
        raw.config_set("replica-serve-stale-data", "no")
        refuses(connect(server.url), "MASTERDOWN")
        raw.replicaof("NO", "ONE")
        raw.set("lock:{n}", "not a lock")
        refuses(connect(server.url), "WRONGTYPE")
        raw.delete("lock:{n}")
        raw.config_set("requirepass", "secret")
        refuses(connect(server.url), "authenticat")
        refuses(connect(server.url.replace("//", "//:wrong@")), "password")
        raw.config_set("requirepass", "")
        assert not raw.exists("lock:{n}")
        assert take(connect(server.url))


def test_an_instance_that_turns_read_only_is_left(server: Redis, connect: Connect) -> None:
    """After a failover the same address may be another server: no connection is kept."""
    backend = connect(server.url)
    with client.Redis.from_url(server.url) as raw:
        backend.probe()
        raw.replicaof("127.0.0.1", "1")
        refuses(backend, "READONLY")
        assert not backend._pool._idle
        raw.replicaof("NO", "ONE")
        assert take(backend)


@pytest.mark.faults(row=17, backend="redis", fired="maxclients reached")
def test_too_many_connections(connect: Connect) -> None:
    with Redis(config=["--maxclients", "2"]) as server:
        with ExitStack() as stack:
            for _ in range(2):
                raw = stack.enter_context(client.Redis.from_url(server.url))
                raw.ping()
            refuses(connect(server.url), "max number of clients|onnection")
        until(lambda: take(connect(server.url)), "room for a connection")


def test_a_script_that_does_not_end(server: Redis, connect: Connect) -> None:
    backend = connect(server.url)
    backend.probe()
    with client.Redis.from_url(server.url, socket_timeout=60) as raw, ThreadPoolExecutor(1) as pool:
        raw.config_set("busy-reply-threshold", 1)
        endless = pool.submit(raw.eval, "while true do end", 0)
        try:
            until(lambda: is_busy(server), "the script running")
            refuses(backend, "BUSY|silent")
        finally:
            with client.Redis.from_url(server.url) as killer:
                killer.script_kill()
            with pytest.raises(client.ResponseError):
                endless.result(PATIENCE)
    assert take(backend)


def is_busy(server: Redis) -> bool:
    with client.Redis.from_url(server.url) as raw:
        try:
            raw.ping()
        except client.ResponseError:
            return True
        return False


def test_scripts_that_the_server_forgot_are_taught_again(server: Redis, connect: Connect) -> None:
    backend = connect(server.url)
    with client.Redis.from_url(server.url) as raw:
        raw.script_flush()
        lease = take(backend)
        raw.script_flush()
        backend.extend(lease.claim, lease.token, 60)
        raw.script_flush()
        backend.release(lease.claim, lease.token)
    assert not backend.inspect()


# --- settings: row 18 -------------------------------------------------------------------------


def test_check_refuses_an_evicting_redis(server: Redis) -> None:
    def ids(**conf: Any) -> list[str | None]:
        return [message.id for message in RedisBackend.check("redis", conf)]

    with client.Redis.from_url(server.url) as raw:
        assert ids(LOCATION=server.url) == []
        raw.config_set("maxmemory", "100mb")
        assert ids(LOCATION=server.url) == []
        for policy in ("allkeys-lru", "volatile-ttl"):
            raw.config_set("maxmemory-policy", policy)
            assert ids(LOCATION=server.url) == ["locking.E021"]
    assert ids(LOCATION="redis://127.0.0.1:1/0") == [], "a server that is down cannot be asked"
    for nowhere in ("", "127.0.0.1:6379", None, ["redis://127.0.0.1:1/0"]):
        assert ids(LOCATION=nowhere) == ["locking.E020"]
    assert ids(LOCATION=server.url, OPTIONS={"FIAR": True}) == ["locking.E022"]
