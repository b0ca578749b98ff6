"""The locks of sessions on a real MariaDB and PostgreSQL: ended sessions, queues, tokens."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest
from pytest_django import DjangoDbBlocker

from devservers import MariaDb, PostgreSql
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost
from locking.backends.database.session_locks import SessionLocks
from locking.claims import Claim
from locking.handler import create
from locking.testing.calls import acquire_and_release
from locking.testing.contract import served
from tests.locking.backends.database.database_tools import (
    SESSION,
    Root,
    alias_for,
    short_response_timeout,
)
from tests.locking.backends.database.postgresql_tools import PATHS, Superuser, migrated
from tests.locking.calls import acquired, store_of
from tests.locking.lock_worker import LockWorker

__all__ = ["short_response_timeout"]
PATH = {"mysql_session": SESSION, "postgresql_session": PATHS["postgresql_session"]}
MINE = Claim(name="mine", owner="me", ttl=6)


@dataclass(frozen=True)
class Store:
    """A server, its alias in DATABASES, and its administrator."""

    kind: str
    server: MariaDb | PostgreSql
    alias: str
    root: Root | Superuser

    def made(self) -> SessionLocks:
        return create(self.kind, {"BACKEND": PATH[self.kind], "LOCATION": self.alias}).backend

    def another(self) -> LockWorker:
        conf = {"BACKEND": PATH[self.kind], "LOCATION": "default"}
        return LockWorker(conf, env={"DATABASE_URL": self.server.url})


@pytest.fixture(scope="module", params=PATH)
def store(request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker) -> Iterator[Store]:
    """A server of its own, which tests may kill."""
    if request.param == "mysql_session":
        with MariaDb() as server, alias_for(server.url, "sessions") as alias:
            yield Store(request.param, server, alias, Root(server))
    else:
        config = ["--shared_preload_libraries=pg_stat_statements"]
        with (
            PostgreSql(config=config) as own,
            migrated(own, "sessions", django_db_blocker) as alias,
        ):
            yield Store(request.param, own, alias, Superuser(own))


@pytest.fixture
def backend(store: Store) -> Iterator[SessionLocks]:
    made = store.made()
    yield made
    made.close()


def kill(store: Store, backend: SessionLocks, owner: str) -> None:
    """End the session of a holder."""
    store.root.kill(backend.pinned[owner].id)


@pytest.mark.faults(row=12)
def test_holder_learns_at_once_that_its_session_ended(
    store: Store, backend: SessionLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the thread looks again. The holder's requests are no reason to look."""
    monkeypatch.setattr("locking.backends.database.session_locks.WATCH_INTERVAL", 3600)
    lost = threading.Event()
    lock = store_of(backend).lock("ended", on_lost=lambda lease: lost.set())
    lease = acquired(lock, timeout=5)
    for _ in range(100):
        lease.extend(5)
    assert not lease.lost
    kill(store, backend, lease.owner)
    assert lost.wait(WAIT_TIMEOUT), "on_lost was not called"
    with ThreadPoolExecutor(1) as other:
        successor = store_of(backend).lock("ended")
        assert other.submit(successor.acquire, timeout=5).result(WAIT_TIMEOUT)
        for call in (lease.check, lock.release, lambda: backend.extend(lease.claim, 0, 5)):
            with pytest.raises(LockLost):
                call()
        taken = other.submit(lambda: successor.lease).result(WAIT_TIMEOUT)
        assert taken.token > lease.token
        taken.check()
        other.submit(successor.release).result(WAIT_TIMEOUT)


def test_lock_that_a_session_no_longer_has_is_lost(store: Store, backend: SessionLocks) -> None:
    """After a kill, and after a proxy has swapped sessions, where the connection lives."""
    ends: list[Callable[[], object]] = [
        partial(kill, store, backend, "me"),
        lambda: backend.pinned["me"].release_locks(),
    ]
    for end in ends:
        for ask in (lambda: backend.extend(MINE, 0, 5), lambda: backend.release(MINE, 0)):
            assert backend.acquire(MINE, 5)
            end()
            with pytest.raises(LockLost):
                ask()


def test_waiters_are_granted_in_order(store: Store, backend: SessionLocks) -> None:
    assert served(store_of(backend), "order", 8, store.root.waits) == list(range(8))


def test_break_lock_ends_the_holders_session(store: Store, backend: SessionLocks) -> None:
    with store.another() as other:
        assert other.acquire("broken")["ok"]
        assert backend.break_lock("broken")
        assert acquire_and_release(store_of(backend), "broken")
        until(lambda: other.lease("broken")["lost"], "the lease being marked as lost")
        assert other.release("broken")["error"] == "LockLost"
    assert not backend.break_lock("broken")


def test_one_thread_watches_all_sessions(backend: SessionLocks) -> None:
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
