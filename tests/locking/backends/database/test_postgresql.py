"""The row lock on a real PostgreSQL: queues, lost sessions, and a pooler that shares sessions."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pytest_django import DjangoDbBlocker

from devservers import PostgreSql
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockMisuse, LockUnavailable
from locking.backends.database.backend import DatabaseBackend
from locking.backends.database.postgresql import PREPARE_AFTER
from locking.claims import Claim
from locking.testing.calls import acquire_and_release, within
from locking.testing.contract import served
from tests.locking.backends.database.database_tools import (
    DATABASE,
    alias_for,
    database,
    short_response_timeout,
)
from tests.locking.backends.database.postgresql_tools import (
    Superuser,
    alias,
    migrated,
    pooled,
    root,
    server,
)
from tests.locking.backends.leaks import assert_nothing_leaks
from tests.locking.calls import acquired, store_of
from tests.locking.lock_worker import LockWorker

__all__ = ["alias", "pooled", "root", "server", "short_response_timeout"]


@pytest.fixture
def backend(alias: str) -> Iterator[DatabaseBackend]:
    made = database(alias)
    yield made
    made.close()


@pytest.fixture
def another(server: PostgreSql) -> Callable[[], LockWorker]:
    conf = {"BACKEND": DATABASE, "LOCATION": "default"}
    return lambda: LockWorker(conf, env={"DATABASE_URL": server.url})


def test_waiters_are_granted_in_order(backend: DatabaseBackend, root: Superuser) -> None:
    assert served(store_of(backend), "order", 8, root.waits) == list(range(8))
    assert backend.capabilities.fair
    assert backend.capabilities.wakes_waiters


def test_waiter_sends_three_requests_in_five_seconds(
    backend: DatabaseBackend, root: Superuser
) -> None:
    with store_of(backend).lock("patient", ttl=60, timeout=5), ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(store_of(backend).lock("patient").acquire, timeout=5)
        until(lambda: root.waits() == 1, "the wait on the server")
        before = root.requests()
        assert not waiter.result(WAIT_TIMEOUT)
        assert root.requests() - before <= 3


def test_wait_may_be_longer_than_the_response_timeout(
    backend: DatabaseBackend, short_response_timeout: None
) -> None:
    with store_of(backend).lock("long", ttl=60, timeout=5), ThreadPoolExecutor(1) as pool:
        assert not pool.submit(store_of(backend).lock("long").acquire, timeout=2.5).result(
            WAIT_TIMEOUT
        )


@pytest.mark.faults(row=12, backend="database on PostgreSQL")
def test_row_of_a_terminated_session_stays_held(backend: DatabaseBackend, root: Superuser) -> None:
    lock = store_of(backend).lock("cut", ttl=30)
    lease = acquired(lock, timeout=5)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(acquire_and_release, store_of(backend), "cut")
        until(lambda: root.waits() == 1, "the waiter")
        root("SELECT pg_terminate_backend(%s)", backend.pinned[lease.owner].id)
        until(lambda: root.waits() == 0, "the holder lock being released")
        before = root.requests()
        until(lambda: root.requests() > before + 4, "further attempts of the waiter")
        assert not waiter.done()
        lock.release()
        assert waiter.result(WAIT_TIMEOUT)


def test_killed_holder_is_replaced_at_the_end_of_its_lease(
    backend: DatabaseBackend, another: Callable[[], LockWorker]
) -> None:
    with another() as other:
        assert other.acquire("killed", ttl=3)["ok"]
        end = time.monotonic() + backend.inspect()[0].expires_in
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(acquire_and_release, store_of(backend), "killed")
            until(lambda: backend.inspect()[0].waiters == 1, "the waiter")
            other.kill()
            assert waiter.result(WAIT_TIMEOUT)
    assert end - 0.05 < time.monotonic() < end + 1


def test_cancelled_wait_ends_on_the_server(backend: DatabaseBackend, root: Superuser) -> None:
    claim = Claim(name="cancelled", ttl=30)
    with store_of(backend).lock("cancelled", timeout=5), ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(backend.acquire, claim, WAIT_TIMEOUT)
        until(lambda: root.waits() == 1, "the waiter")
        claim.cancel()
        assert waiter.result(WAIT_TIMEOUT) is None
        until(lambda: root.waits() == 0, "the end of the wait on the server")


@pytest.mark.faults(row=16, backend="database on PostgreSQL", fired="row locked by a transaction")
def test_locked_row_is_waited_for(backend: DatabaseBackend, root: Superuser) -> None:
    assert acquire_and_release(store_of(backend), "row", 5)
    root("BEGIN")
    root("SELECT 1 FROM locking_lockrow WHERE name = 'row' FOR UPDATE")
    with within(10), pytest.raises(LockUnavailable, match="lock timeout"):
        store_of(backend).lock("row").acquire(timeout=0.5)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(acquire_and_release, store_of(backend), "row")
        sessions = set[tuple[int, ...]]()  # each attempt has its own
        waits = "SELECT pid FROM pg_locks WHERE NOT granted"
        until(lambda: sessions.update(root(waits)) or len(sessions) > 1, "a second attempt")
        assert not waiter.done()
        root("ROLLBACK")
        assert waiter.result(WAIT_TIMEOUT)


def test_paused_server_fails_in_bounded_time(
    backend: DatabaseBackend, server: PostgreSql, short_response_timeout: None
) -> None:
    backend.probe()
    server.pause()
    try:
        with within(10), pytest.raises(LockUnavailable):
            store_of(backend).lock("paused").acquire(timeout=0.5)
    finally:
        server.resume()
    until(lambda: not backend.pool.breaker.is_open, "the reply to a probe")
    assert acquire_and_release(store_of(backend), "paused")


@pytest.mark.faults(row=5, backend="database on PostgreSQL")
def test_lock_survives_a_killed_server(django_db_blocker: DjangoDbBlocker) -> None:
    with PostgreSql() as own, migrated(own, "own", django_db_blocker) as alias:
        backend = database(alias)
        claim = Claim(name="kept", owner="holder", ttl=6)
        grant = backend.acquire(claim, 5)
        own.kill()
        with pytest.raises(LockUnavailable):
            backend.extend(claim, grant.token, 6)
        own.start()
        with store_of(backend).lock("kept", timeout=WAIT_TIMEOUT) as successor:
            assert successor.token > grant.token
        assert time.monotonic() >= grant.deadline - 0.01, "the row was lost with the server"
        backend.close()


def test_waiters_poll_behind_a_transaction_pooler(backend: DatabaseBackend, pooled: str) -> None:
    behind = database(pooled)
    assert acquire_and_release(store_of(behind), "pooled", 5)
    assert not behind.capabilities.fair
    assert not behind.capabilities.wakes_waiters
    with ThreadPoolExecutor(2) as pool:
        with store_of(behind).lock("pooled", timeout=5) as lease:
            assert not behind.pinned, "a held lock needs no session"
            waits = [
                pool.submit(acquire_and_release, one, "pooled")
                for one in map(store_of, (behind, backend))
            ]
            assert [held.owner for held in backend.inspect()] == [lease.owner]
            assert not any(wait.done() for wait in waits)
        assert all(wait.result(WAIT_TIMEOUT) for wait in waits)
    behind.close()


def test_connection_is_kept_alive(backend: DatabaseBackend) -> None:
    with store_of(backend).lock("alive", timeout=5) as lease:
        connection = socket.socket(fileno=backend.pinned[lease.owner].raw.fileno())
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000
        connection.detach()


def test_frequent_statements_are_prepared_except_behind_a_pooler(
    backend: DatabaseBackend, pooled: str
) -> None:
    def prepared(one: DatabaseBackend) -> int:
        sql = "SELECT COUNT(*) FROM pg_prepared_statements"
        return int(one.pool.call(lambda session: session.rows(sql))[0][0])

    behind = database(pooled)
    for one in (backend, behind):
        for _ in range(PREPARE_AFTER + 2):
            assert acquire_and_release(store_of(one), "prepared", 5)
    assert prepared(backend) == 2
    assert prepared(behind) == 0
    behind.close()


def test_lost_prepared_statements_are_replaced(backend: DatabaseBackend) -> None:
    for _ in range(PREPARE_AFTER + 2):
        assert acquire_and_release(store_of(backend), "deallocated", 5)
    backend.pool.call(lambda session: session.change("DEALLOCATE ALL"))
    assert acquire_and_release(store_of(backend), "deallocated", 5)


def test_missing_table_is_reported_as_misuse(server: PostgreSql) -> None:
    with alias_for(server.url.replace("/shop", "/postgres"), "empty") as alias:
        backend = database(alias)
        with pytest.raises(LockMisuse, match="migrate"):
            store_of(backend).lock("nowhere").acquire(timeout=1)
        backend.close()


@pytest.mark.long
def test_20000_acquisitions_leak_nothing(backend: DatabaseBackend, root: Superuser) -> None:
    before = root.sessions()  # those of earlier tests
    assert_nothing_leaks(store_of(backend))
    assert root.sessions() <= before + 1
