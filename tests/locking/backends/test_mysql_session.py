"""GET_LOCK on a real MariaDB: killed sessions, queues, long waits (FAULTS rows 3, 17, 24)."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from pytest_django import DjangoDbBlocker

from devservers import MariaDb
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost, LockMisuse, LockUnavailable
from locking.backends.database.session import MySQLSession
from locking.backends.mysql_session import MySQLSessionBackend
from locking.claims import Claim
from locking.testing.calls import acquire_and_release, in_thread
from locking.testing.contract import served
from tests.locking.backends.database.database_tools import (
    SESSION,
    Root,
    alias_for,
    database,
    root,
    server,
    session,
    short_response_timeout,
)
from tests.locking.backends.leaks import assert_nothing_leaks
from tests.locking.calls import acquired, store_of
from tests.locking.lock_worker import LockWorker

__all__ = ["root", "server", "short_response_timeout"]


@pytest.fixture(scope="module")
def alias(server: MariaDb) -> Iterator[str]:
    with alias_for(server.url, "sessions") as alias:
        yield alias


@pytest.fixture
def backend(alias: str) -> Iterator[MySQLSessionBackend]:
    made = session(alias)
    yield made
    made.close()


@pytest.fixture
def another(server: MariaDb) -> Callable[[], LockWorker]:
    conf = {"BACKEND": SESSION, "LOCATION": "default"}
    return lambda: LockWorker(conf, env={"DATABASE_URL": server.url})


def claim(name: str, owner: str) -> Claim:
    return Claim(name=name, owner=owner, ttl=6)


@pytest.mark.faults(row=12, backend="mysql_session")
def test_lease_is_lost_when_its_session_is_killed(backend: MySQLSessionBackend, root: Root) -> None:
    lost = threading.Event()
    lock = store_of(backend).lock("ended", on_lost=lambda lease: lost.set())
    lease = acquired(lock, timeout=5)
    root(f"KILL {backend.pinned[lease.owner].id}")
    assert lost.wait(2), "on_lost was not called"
    with pytest.raises(LockLost):
        lease.check()
    with ThreadPoolExecutor(1) as other:
        successor = store_of(backend).lock("ended")
        assert other.submit(successor.acquire, False).result(WAIT_TIMEOUT)
        with pytest.raises(LockLost):
            lock.release()
        with pytest.raises(LockLost):
            backend.extend(lease.claim, lease.token, 5)
        taken = other.submit(lambda: successor.lease).result(WAIT_TIMEOUT)
        assert taken.token > lease.token
        assert not taken.lost
        other.submit(successor.release).result(WAIT_TIMEOUT)


def test_release_reports_a_killed_session(backend: MySQLSessionBackend, root: Root) -> None:
    mine = claim("moment", "me")
    grant = backend.acquire(mine, 5)
    root(f"KILL {backend.pinned['me'].id}")
    with pytest.raises(LockLost):
        backend.release(mine, grant.token)


def test_lock_released_by_a_proxy_is_lost(backend: MySQLSessionBackend, root: Root) -> None:
    """What a proxy that swaps sessions does: the connection lives, and the lock is gone."""
    mine = claim("swapped", "me")
    for ask in (lambda: backend.extend(mine, 0, 5), lambda: backend.release(mine, 0)):
        assert backend.acquire(mine, 5)
        backend.pinned["me"].change("DO RELEASE_ALL_LOCKS()")
        with pytest.raises(LockLost):
            ask()


def test_waiters_are_granted_in_order(backend: MySQLSessionBackend, root: Root) -> None:
    assert served(store_of(backend), "order", 8, root.waits) == list(range(8))


def test_wait_may_be_longer_than_the_read_timeout(
    backend: MySQLSessionBackend, root: Root, short_response_timeout: None
) -> None:
    with store_of(backend).lock("long", timeout=5), ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(store_of(backend).lock("long").acquire, timeout=3.5)
        until(lambda: root.waits() == 1, "the waiter")
        before = root.questions()
        assert not waiter.result(WAIT_TIMEOUT)
        assert root.questions() - before < 10, "it polls"  # one, where no answer was late


def test_tokens_grow_through_a_restart(alias: str) -> None:
    with MariaDb() as server, alias_for(server.url, "restarted") as restarted:
        backend = session(restarted)
        mine = claim("restart", "me")
        first = backend.acquire(mine, 5)
        born = time.monotonic()
        server.kill()
        with pytest.raises(LockLost):
            backend.release(mine, first.token)
        with pytest.raises(LockUnavailable):
            backend.acquire(mine, 1)
        # The token holds the second of the server's start.
        until(lambda: time.monotonic() - born > 1, "another second")
        server.start()
        second = backend.acquire(mine, 5)
        assert second.token > first.token
        backend.close()


def test_break_lock_kills_the_holders_session(
    backend: MySQLSessionBackend, another: Callable[[], LockWorker]
) -> None:
    with another() as other:
        assert other.acquire("broken")["ok"]
        assert backend.break_lock("broken")
        assert store_of(backend).lock("broken").acquire(timeout=5)
        until(lambda: other.lease("broken")["lost"], "the lease being marked as lost")
        assert other.release("broken")["error"] == "LockLost"
        store_of(backend).lock("broken").release()
    assert not backend.break_lock("broken")


def test_watching_thread_survives_a_closed_session(
    backend: MySQLSessionBackend, root: Root
) -> None:
    """As a holder does that finds out first."""
    for close in (lambda kept: kept.close(), lambda kept: root(f"KILL {kept.id}")):
        with suppress(LockLost), store_of(backend).lock("watched", timeout=5) as lease:
            close(backend.pinned[lease.owner])
            until(lambda lease=lease: lease.lost, "the lease being marked as lost")


def test_reply_to_a_holder_is_not_the_end_of_its_session(
    backend: MySQLSessionBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watching thread sees the reply, and is stopped until the holder has read it."""
    with store_of(backend).lock("asked", timeout=5) as lease:
        session, looks = backend.pinned[lease.owner], list[bool]()
        looking, asking, seen = threading.Event(), threading.Event(), threading.Event()
        ask = session.row

        def row(*args: Any) -> Any:
            asking.set()
            seen.wait(1)
            try:
                return ask(*args)
            finally:
                asking.clear()

        def has_input() -> bool:
            looking.set()
            if is_reply := asking.wait(1):
                seen.set()
                until(lambda: backend.pinned.get(lease.owner) is session, "the end of the request")
            looks.append(is_reply)
            return is_reply

        monkeypatch.setattr(session, "row", row)
        monkeypatch.setattr(session, "has_input", has_input)
        assert looking.wait(WAIT_TIMEOUT)
        lease.extend(5)
        before = len(looks)
        until(lambda: len(looks) > before, "another look")
        assert not lease.lost


def test_released_session_is_not_closed_with_its_last_holder(
    backend: MySQLSessionBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watching thread is stopped until the holder has ended and another one has its session."""
    looking, reused, go = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        with store_of(backend).lock("first", timeout=5):
            assert go.wait(WAIT_TIMEOUT)

    holder = threading.Thread(target=hold)
    holder.start()
    session = until(lambda: next(iter(backend.pinned.values()), None), "the lock being held")
    looks: list[int] = []

    def has_input() -> bool:
        looks.append(1)
        looking.set()
        reused.wait(1)
        return False

    monkeypatch.setattr(session, "has_input", has_input)
    assert looking.wait(WAIT_TIMEOUT)
    go.set()
    holder.join(WAIT_TIMEOUT)
    with store_of(backend).lock("second", timeout=5) as lease:
        assert backend.pinned[lease.owner] is session
        before = len(looks)
        reused.set()
        until(lambda: len(looks) > before, "another look")
        assert session.row("SELECT 1") == (1,)


def test_one_thread_watches_all_sessions(backend: MySQLSessionBackend) -> None:
    before, gate = threading.enumerate(), threading.Barrier(8)

    def watching() -> int:
        new = [thread for thread in threading.enumerate() if thread not in before]
        return sum(thread.name == "lock-sessions" for thread in new)

    def hold(number: int) -> None:
        with store_of(backend).lock(f"many:{number}", timeout=WAIT_TIMEOUT):
            gate.wait(WAIT_TIMEOUT)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(hold, range(8)))
    assert watching() == 1
    backend.close()
    until(lambda: watching() == 0, "the thread ending")


def test_lock_of_an_ended_thread_is_released(backend: MySQLSessionBackend) -> None:
    in_thread(store_of(backend).lock("dead").acquire)
    with store_of(backend).lock("dead", timeout=WAIT_TIMEOUT) as lease:
        assert [held.owner for held in backend.inspect()] == [lease.owner]


def test_idle_holder_keeps_its_lock(alias: str, root: Root) -> None:
    """The server closes idle sessions after `wait_timeout`, and a holder sends nothing."""
    before = root("SELECT @@GLOBAL.wait_timeout")[0][0]
    root("SET GLOBAL wait_timeout = 1")
    try:
        backend = session(alias)
        with store_of(backend).lock("idle", timeout=5) as lease:
            until(lambda: time.monotonic() > lease.granted_at + 2.5, "the time-out passing")
            lease.check()
        backend.close()
    finally:
        root(f"SET GLOBAL wait_timeout = {before}")


def test_connection_is_kept_alive(backend: MySQLSessionBackend) -> None:
    with store_of(backend).lock("alive", timeout=5) as lease:
        file = os.dup(backend.pinned[lease.owner].raw.fileno())
        with socket.socket(fileno=file) as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


def test_galera_is_refused(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This server is no cluster, so the test replaces the question."""
    monkeypatch.setattr("locking.backends.mysql_session.GALERA", "SELECT 'wsrep_on', 'ON'")
    backend = session(alias)
    with pytest.raises(LockMisuse, match="Galera"):
        store_of(backend).lock("cluster").acquire()
    backend.close()


def test_20000_acquisitions_leak_nothing(backend: MySQLSessionBackend, root: Root) -> None:
    assert_nothing_leaks(store_of(backend))
    sql = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = 'root'"
    assert root(sql)[0][0] == 2, "its one connection, and this one"


def refused(wait: Callable[[], bool]) -> float:
    """Return how many seconds it took: the best of a few, because the machine may be busy."""
    began = time.monotonic()
    assert not in_thread(wait)
    return time.monotonic() - began


def test_short_wait_on_mysql_ends_on_time(
    server: MariaDb, django_db_blocker: DjangoDbBlocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL rounds the seconds of GET_LOCK; here MariaDB is asked like MySQL."""
    create_session = MySQLSession.__init__

    def without_fractions(self: MySQLSession, *args: Any) -> None:
        create_session(self, *args)
        self._fractions = False

    monkeypatch.setattr(MySQLSession, "__init__", without_fractions)
    with alias_for(server.url, "whole_seconds", django_db_blocker) as alias:
        for backend in (database(alias), session(alias)):
            with store_of(backend).lock("short"):
                for seconds in (0.2, 1.3):
                    wait = partial(acquire_and_release, store_of(backend), "short", seconds)
                    best = min(refused(wait) for _ in range(3))
                    assert seconds <= best < seconds + 0.6
            assert in_thread(partial(acquire_and_release, store_of(backend), "short", 0.2))
            backend.close()
