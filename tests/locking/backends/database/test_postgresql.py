"""The row lock on a real PostgreSQL: prepared statements, locked rows, a pooler."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from devservers import PostgreSql
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockMisuse, LockUnavailable
from locking.backends.database.backend import DatabaseBackend
from locking.backends.database.postgresql import PREPARE_AFTER
from locking.testing.calls import acquire_and_release, within
from tests.locking.backends.database.database_tools import (
    alias_for,
    database,
    short_response_timeout,
)
from tests.locking.backends.database.postgresql_tools import (
    Superuser,
    alias,
    pooled,
    root,
    server,
)
from tests.locking.backends.leaks import assert_nothing_leaks
from tests.locking.calls import store_of

__all__ = ["alias", "pooled", "root", "server", "short_response_timeout"]


@pytest.fixture
def backend(alias: str) -> Iterator[DatabaseBackend]:
    made = database(alias)
    yield made
    made.close()


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


def test_waiters_poll_behind_a_transaction_pooler(backend: DatabaseBackend, pooled: str) -> None:
    behind = database(pooled)
    assert acquire_and_release(store_of(behind), "pooled", 5)
    assert not behind.capabilities.fair
    assert not behind.capabilities.wakes_waiters
    with ThreadPoolExecutor(2) as pool:
        with store_of(behind).lock("pooled", timeout=5) as lease:
            assert not behind.pinned, "a held lock needs no session"
            waits = [
                pool.submit(acquire_and_release, store_of(one), "pooled")
                for one in (behind, backend)
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
