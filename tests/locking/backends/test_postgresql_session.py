"""pg_advisory_lock on a real PostgreSQL: ended sessions, queues, growing tokens, a pooler."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from pytest_django import DjangoDbBlocker

from devservers import PostgreSql
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost, LockMisuse
from locking.backends.database.session import UserLockSession
from locking.backends.postgresql_session import PostgreSQLSessionBackend
from locking.claims import Claim
from locking.conf import backend_class
from locking.handler import create
from locking.lease import Lock
from locking.testing.calls import acquire_and_release
from locking.testing.contract import served
from tests.locking.backends.database.postgresql_tools import (
    Superuser,
    alias,
    migrated,
    pooled,
    root,
    server,
)
from tests.locking.calls import acquired, store_of
from tests.locking.lock_worker import LockWorker

__all__ = ["alias", "pooled", "root", "server"]
SESSION = "locking.backends.postgresql_session.PostgreSQLSessionBackend"


def session(alias: str) -> PostgreSQLSessionBackend:
    return create("postgresql_session", {"BACKEND": SESSION, "LOCATION": alias}).backend


@pytest.fixture
def backend(alias: str) -> Iterator[PostgreSQLSessionBackend]:
    made = session(alias)
    yield made
    made.close()


@pytest.fixture
def another(server: PostgreSql) -> Callable[[], LockWorker]:
    conf = {"BACKEND": SESSION, "LOCATION": "default"}
    return lambda: LockWorker(conf, env={"DATABASE_URL": server.url})


@pytest.mark.faults(row=12, backend="postgresql_session")
def test_lease_is_lost_when_its_session_ends(
    backend: PostgreSQLSessionBackend, root: Superuser
) -> None:
    lost = threading.Event()
    lock = store_of(backend).lock("ended", on_lost=lambda lease: lost.set())
    lease = acquired(lock, timeout=5)
    root("SELECT pg_terminate_backend(%s)", backend.pinned[lease.owner].id)
    assert lost.wait(WAIT_TIMEOUT), "on_lost was not called"
    with pytest.raises(LockLost):
        lock.release()
    with store_of(backend).lock("ended", timeout=5) as successor:
        assert successor.token > lease.token


def test_lock_released_behind_the_holder_is_lost(backend: PostgreSQLSessionBackend) -> None:
    mine = Claim(name="swapped", owner="me", ttl=6)
    for ask in (lambda: backend.extend(mine, 0, 5), lambda: backend.release(mine, 0)):
        assert backend.acquire(mine, 5)
        backend.pinned["me"].release_locks()
        with pytest.raises(LockLost):
            ask()


@pytest.mark.parametrize("kind", ["plain", "reader", "semaphore"])
def test_lock_granted_at_the_end_of_a_wait_is_not_kept(
    backend: PostgreSQLSessionBackend, alias: str, root: Superuser, kind: str
) -> None:
    """A statement that reaches its lock_timeout keeps a lock that it got at that moment."""
    name = f"granted late {kind}"

    def lock(of: PostgreSQLSessionBackend, *, first: bool = False) -> Lock:
        if kind == "reader":
            both = store_of(of).read_write(name)
            return both.write() if first else both.read()
        return store_of(of).semaphore(name, 1) if kind == "semaphore" else store_of(of).lock(name)

    other = session(alias)
    mine = lock(other, first=True)
    mine.acquire(timeout=5)
    with ThreadPoolExecutor(2) as pool:
        waiters = [pool.submit(lock(backend).acquire, timeout=1)]
        if kind == "semaphore":  # its first waiter waits for a notification, the next in a queue
            until(lambda: root.sessions() >= 2 and _queue_is_taken(root), "the first waiter")
            waiters.append(pool.submit(lock(backend).acquire, timeout=1))
        until(lambda: root.waits() == 1, "the wait on the server")
        ((pid,),) = root("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        os.kill(pid, signal.SIGSTOP)
        try:
            if kind != "semaphore":
                mine.release()
            until(lambda: root.waits() == 0, "the grant")
            until(lambda: _is_pending(pid, signal.SIGALRM), "the end of the wait")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert [waiter.result(WAIT_TIMEOUT) for waiter in waiters] == [False] * len(waiters)
    if kind == "semaphore":
        mine.release()
    held = "SELECT * FROM pg_locks WHERE locktype = 'advisory'"
    assert root(held) == []
    other.close()


def _queue_is_taken(root: Superuser) -> bool:
    sql = "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
    return bool(root(sql)[0][0] == 2)


def _is_pending(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    pending = re.search(r"ShdPnd:\s*(\w+)", status)
    assert pending is not None
    return bool(int(pending[1], 16) >> number - 1 & 1)


def test_waiters_are_granted_in_order(backend: PostgreSQLSessionBackend, root: Superuser) -> None:
    assert served(store_of(backend), "order", 8, root.waits) == list(range(8))


def test_waiter_sends_one_request_at_its_end(
    backend: PostgreSQLSessionBackend, root: Superuser
) -> None:
    with store_of(backend).lock("patient", timeout=5), ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(store_of(backend).lock("patient").acquire, timeout=1)
        until(lambda: root.waits() == 1, "the wait on the server")
        before = root.requests()
        assert not waiter.result(WAIT_TIMEOUT)
        assert root.requests() - before <= 1, "more than to release what the wait may have got"


def test_wait_does_not_end_early(backend: PostgreSQLSessionBackend) -> None:
    """The server counts milliseconds; for what is left of one, the waiter would wait again."""
    claim, seconds = Claim(name="early", owner="me", ttl=6), 0.00199
    with closing(backend.pool.open()) as holder, closing(backend.pool.open()) as waiter:
        assert isinstance(holder, UserLockSession)
        assert isinstance(waiter, UserLockSession)
        assert holder.get_lock(claim, "early", 5)
        for _ in range(50):
            began = time.monotonic()
            assert waiter.get_lock(claim, "early", seconds) is None
            assert time.monotonic() - began >= seconds


def test_killed_holder_frees_its_lock_at_once(
    backend: PostgreSQLSessionBackend, another: Callable[[], LockWorker], root: Superuser
) -> None:
    with another() as other:
        assert other.acquire("killed", ttl=60)["ok"]
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(acquire_and_release, store_of(backend), "killed")
            until(lambda: root.waits() == 1, "the waiter")
            before = time.monotonic()
            other.kill()
            assert waiter.result(WAIT_TIMEOUT)
    assert time.monotonic() - before < 5, "far less than the lease"


@pytest.mark.faults(row=5, backend="postgresql_session")
def test_tokens_grow_through_a_crash_of_the_server(django_db_blocker: DjangoDbBlocker) -> None:
    with PostgreSql() as own, migrated(own, "restarted", django_db_blocker) as alias:
        backend = session(alias)
        mine = Claim(name="restart", owner="me", ttl=6)
        first = backend.acquire(mine, 5)
        own.kill()
        with pytest.raises(LockLost):
            backend.release(mine, first.token)
        own.start()
        second = backend.acquire(mine, 5)
        assert second.token > first.token
        backend.close()


def test_break_lock_ends_the_holders_session(
    backend: PostgreSQLSessionBackend, another: Callable[[], LockWorker]
) -> None:
    with another() as other:
        assert other.acquire("broken")["ok"]
        assert backend.break_lock("broken")
        assert acquire_and_release(store_of(backend), "broken")
        until(lambda: other.lease("broken")["lost"], "the lease being marked as lost")
    assert not backend.break_lock("broken")


def test_transaction_pooler_is_refused(pooled: str) -> None:
    backend = session(pooled)
    with pytest.raises(LockMisuse, match="PgBouncer"):
        store_of(backend).lock("pooled").acquire()
    assert not backend.pinned
    backend.close()


def test_check_names_the_engine() -> None:
    conf = {"BACKEND": SESSION, "LOCATION": "default"}
    (found,) = backend_class(conf).check("x", conf)
    assert found.id == "locking.E052"
    assert "needs postgresql" in found.msg
