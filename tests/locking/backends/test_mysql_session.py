"""GET_LOCK on a real MariaDB: killed sessions, queues, long waits (FAULTS rows 3, 17, 24)."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from pytest_django import DjangoDbBlocker

from devservers import MariaDb
from devservers.faults.waiting import until
from locking import LockMisuse, LockUnavailable
from locking.backends.database.mysql import MySQLSession
from locking.backends.mysql_session import MySQLSessionBackend
from locking.testing.calls import acquire_and_release, in_thread
from tests.locking.backends.database.database_tools import (
    Root,
    alias_for,
    database,
    root,
    server,
    session,
    short_response_timeout,
)
from tests.locking.backends.leaks import assert_nothing_leaks
from tests.locking.calls import store_of

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


def test_read_only_server_is_refused(backend: MySQLSessionBackend, root: Root) -> None:
    """A proxy that distributes reads would send two callers to two replicas."""
    root("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(LockUnavailable, match="read-only"):
            store_of(backend).lock("replica").acquire(timeout=1)
        assert not backend.pinned
    finally:
        root("SET GLOBAL read_only = 0")
    assert acquire_and_release(store_of(backend), "replica", 5)


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
