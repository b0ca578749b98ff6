"""The contract on SQLite, and on a real MariaDB, which refuses, deadlocks or rounds (row 17)."""

import time
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from devservers.faults.waiting import until
from locking import LockMisuse, LockUnavailable
from locking.backends.database.mysql import MySQLSession
from locking.claims import Claim
from locking.handler import create
from locking.lease import LockStore
from locking.testing.calls import acquire_and_release, in_thread
from locking.testing.contract_base import Open, granted
from tests.locking.backends.contract import Contract
from tests.locking.backends.database.on_servers import OnServer, Rows, Sessions
from tests.locking.backends.store_drivers import MariaDbDriver, MariaDbSessions


@pytest.mark.only("sqlite")
class TestDatabase(Contract):
    path = Rows.path
    # SQLite forbids to fork while a thread is in a statement: the child inherits the mark of its
    # lock on the file, and "database is locked" stays.
    test_release_wakes_the_waiter_also_after_a_fork = None
    test_unreachable_store_fails_in_bounded_time = None

    @pytest.fixture
    def location(self, database_url: str) -> str:
        return "default"

    @pytest.fixture
    def databases(self, database_url: str) -> dict[str, str]:
        return {"default": database_url}


class OnMariaDb(OnServer):
    """A server that refuses a user."""

    login = "app:pw"
    grants = "CREATE OR REPLACE USER app IDENTIFIED BY 'pw'", "GRANT ALL ON shop.* TO app"
    # To a read-only server a proxy sends two callers, each to a replica of its own.
    refusals = (
        ("SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0", "1290|read-only"),
        ("ALTER USER app IDENTIFIED BY 'new'", "ALTER USER app IDENTIFIED BY 'pw'", "1045"),
    )

    def test_short_wait_on_mysql_ends_on_time(
        self, conf: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """MySQL rounds the seconds of GET_LOCK; here MariaDB is asked like MySQL."""
        create_session = MySQLSession.__init__

        def without_fractions(self: MySQLSession, *args: Any) -> None:
            create_session(self, *args)
            self._fractions = False

        def refused(wait: partial[bool]) -> float:
            began = time.monotonic()
            assert not in_thread(wait)
            return time.monotonic() - began

        monkeypatch.setattr(MySQLSession, "__init__", without_fractions)
        with closing(create("short", conf)) as locks, locks.lock(name):
            for seconds in (0.2, 1.3):
                wait = partial(acquire_and_release, locks, name, seconds)
                took = (refused(wait) for _ in range(10))  # the machine may be busy
                assert any(seconds <= one < seconds + 0.6 for one in took)


class TestRows(Rows, OnMariaDb):
    store = "database on MariaDB"
    Driver = MariaDbDriver
    codes = "1213", "1020"  # a deadlock; changed since the snapshot
    roll_back = (
        "CREATE TRIGGER refuse BEFORE UPDATE ON locking_lockrow FOR EACH ROW "
        "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'Repeat it'"
    )
    allow = "DROP TRIGGER refuse"

    def test_extension_without_a_reply_leaves_time_for_another(
        self, driver: MariaDbDriver, open_store: Open, name: str
    ) -> None:
        locks, claim = open_store(far=True), Claim(name=name, ttl=6)
        grant, far = granted(locks, claim), locks.backend
        far.probe()  # on an open connection, which the extension uses, too
        driver.hold()
        with pytest.raises(LockUnavailable):
            far.extend(claim, grant.token, 6)
        assert time.monotonic() < grant.deadline - 1, "it took the 5 s of other statements"
        driver.recover()
        until(lambda: not far.pool.breaker.is_open, "the reply to a probe")
        assert far.extend(claim, grant.token, 6) > grant.deadline
        far.release(claim, grant.token)

    @pytest.mark.faults(row=17, fired="connections used up")
    def test_1040_too_many_connections(self, limited: LockStore, name: str) -> None:
        root, crowd = self.database.connect(), []

        def open_more() -> None:
            while len(crowd) < 20:
                crowd.append(limited.backend.pool.open())

        root("SET GLOBAL max_connections = 10")
        try:
            with pytest.raises(LockUnavailable):
                open_more()
            self.refused(limited, "1040", name)
        finally:
            root("SET GLOBAL max_connections = 400")
            for session in crowd:
                session.close()
        assert in_thread(acquire_and_release, limited, name, 5)


class TestMySQLSession(Sessions, OnMariaDb):
    path = "locking.backends.mysql_session.MySQLSessionBackend"
    Driver = MariaDbSessions
    breaks = b"KILL"

    def test_idle_holder_keeps_its_lock(self, locks: LockStore, name: str) -> None:
        """The server closes idle sessions after `wait_timeout`, and a holder sends nothing."""
        root = self.database.connect()
        ((before,),) = root("SELECT @@GLOBAL.wait_timeout")
        root("SET GLOBAL wait_timeout = 1")
        try:
            with locks.lock(name, timeout=5) as lease:
                until(lambda: time.monotonic() > lease.granted_at + 2.5, "the timeout passing")
                lease.check()
        finally:
            root(f"SET GLOBAL wait_timeout = {before}")

    def test_galera_is_refused(
        self, locks: LockStore, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """This server is no cluster, so the test replaces the question."""
        monkeypatch.setattr("locking.backends.mysql_session.GALERA", "SELECT 'wsrep_on', 'ON'")
        with pytest.raises(LockMisuse, match="Galera"):
            locks.lock(name).acquire()
