"""The contract on a real PostgreSQL, which refuses (row 17), directly and behind PgBouncer."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from django.db import connections, transaction
from pytest_django.plugin import DjangoDbBlocker

from devservers import PostgreSql
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockMisuse, LockUnavailable
from locking.backends.database.postgresql import PREPARE_AFTER
from locking.handler import create
from locking.lease import LockStore
from locking.testing.calls import acquire_and_release, in_thread
from locking.testing.contract_base import Open
from tests.locking.backends.contract import Contract
from tests.locking.backends.database.database_tools import alias_for
from tests.locking.backends.database.on_servers import OnServer, Rows, Sessions
from tests.locking.backends.database.postgresql_tools import alias, pooled, server
from tests.locking.backends.store_drivers import PostgreSqlDriver, PostgreSqlSessions

__all__ = ["alias", "pooled", "server"]


class OnPostgreSql(OnServer):
    """A server that refuses a user."""

    login = "app"
    grants = (
        "DO $$ BEGIN CREATE ROLE app LOGIN; EXCEPTION WHEN duplicate_object THEN END $$",
        "GRANT ALL ON ALL TABLES IN SCHEMA public TO app",
        "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO app",
    )
    refusals = (
        (
            "ALTER ROLE app CONNECTION LIMIT 0",
            "ALTER ROLE app CONNECTION LIMIT -1",
            "too many connections",  # 53300
        ),
        (
            "ALTER ROLE app SET default_transaction_read_only = on",
            "ALTER ROLE app RESET default_transaction_read_only",
            "read-only transaction",  # 25006
        ),
        ("ALTER ROLE app NOLOGIN", "ALTER ROLE app LOGIN", "not permitted to log in"),  # 28000
    )


class TestRows(Rows, OnPostgreSql):
    store = "database on PostgreSQL"
    Driver = PostgreSqlDriver

    codes = "40P01", "40001"
    roll_back = (
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql "
        "AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$; "
        "CREATE TRIGGER refuse BEFORE UPDATE ON locking_lockrow "
        "FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    allow = "DROP FUNCTION refuse CASCADE"

    @pytest.mark.faults(row=17)
    def test_full_disk_refuses_new_rows_and_frees_held_ones(
        self, driver: PostgreSqlDriver, locks: LockStore, name: str
    ) -> None:
        """The lock of a new name needs space; a held one can still be released."""
        held, tried = locks.lock(name, ttl=60), list[str]()
        assert held.acquire(timeout=5)
        driver.disk.fill()

        def fill_the_pages_of_the_table() -> None:
            while len(tried) < 1000:
                tried.append(f"{name}-{len(tried)}")
                assert acquire_and_release(locks, tried[-1], 0.5)

        try:
            with pytest.raises(LockUnavailable, match="No space left"):
                fill_the_pages_of_the_table()
            assert name in {one.name for one in locks.inspect()}
            held.release()
        finally:
            driver.disk.free()
        assert acquire_and_release(locks, tried[-1])  # after its lease, if the release was refused

    def test_lost_prepared_statements_are_replaced(self, locks: LockStore, name: str) -> None:
        for _ in range(PREPARE_AFTER + 2):
            assert acquire_and_release(locks, name, 5)
        locks.backend.pool.call(lambda session: session.change("DEALLOCATE ALL"))
        assert acquire_and_release(locks, name, 5)

    def test_missing_table_is_reported_as_misuse(self, name: str) -> None:
        conf = {"BACKEND": self.path, "LOCATION": "empty"}
        url = self.database.server.url.replace("/shop", "/postgres")
        with alias_for(url, "empty"), pytest.raises(LockMisuse, match="migrate"):
            create("empty", conf).lock(name).acquire(timeout=1)


class TestBehindPgBouncer(Contract):
    """The other process is connected directly."""

    store = TestRows.store
    path = Rows.path
    test_every_contender_gets_a_share = None
    test_killed_holder_is_replaced = None
    test_killed_waiter_is_skipped = None
    test_unreachable_store_fails_in_bounded_time = None

    @pytest.fixture
    def location(self, pooled: str) -> str:
        return pooled

    @pytest.fixture
    def databases(self, pooled: str, server: PostgreSql) -> dict[str, str]:
        return {pooled: server.url}

    def test_waiters_poll(self, locks: LockStore, alias: str, name: str) -> None:
        """They and the waiters of direct connections do not overtake a holder."""
        direct = create("direct", {"BACKEND": self.path, "LOCATION": alias})
        with ThreadPoolExecutor(2) as pool:
            with locks.lock(name, timeout=5) as lease:
                assert not locks.capabilities.fair
                assert not locks.capabilities.wakes_waiters
                assert not locks.backend.pinned, "a held lock needs no session"
                waits = [pool.submit(acquire_and_release, one, name) for one in (locks, direct)]
                assert self.held(direct, name) == [(lease.owner, 1)]
                assert not any(wait.done() for wait in waits)
            assert all(wait.result(WAIT_TIMEOUT) for wait in waits)
        direct.close()


def test_pool_of_psycopg_serves_django_and_never_a_lock(
    alias: str, django_db_blocker: DjangoDbBlocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its only connection is in a transaction; a lock on it would be undone with that."""
    pool = {"min_size": 1, "max_size": 1, "timeout": 5}
    monkeypatch.setitem(connections.settings[alias], "OPTIONS", {"pool": pool})
    django, locks = connections[alias], create("beside", {"BACKEND": Rows.path, "LOCATION": alias})
    with django_db_blocker.unblock(), closing(locks):
        try:
            with transaction.atomic(using=alias):
                assert django.pool.get_stats()["pool_size"] == 1
                with locks.lock("beside", timeout=5):
                    assert not in_thread(acquire_and_release, locks, "beside", 0)
                transaction.set_rollback(True, using=alias)
            assert acquire_and_release(locks, "beside", 0)
        finally:
            django.close()
            django.close_pool()


class TestSession(Sessions, OnPostgreSql):
    path = "locking.backends.postgresql_session.PostgreSQLSessionBackend"
    Driver = PostgreSqlSessions
    breaks = b"pg_terminate_backend"

    def test_lock_granted_at_the_end_of_a_wait_is_not_kept(
        self, open_store: Open, name: str
    ) -> None:
        """A statement that reaches its lock_timeout keeps a lock that it got at that moment."""
        root, mine, other = self.database.connect(), open_store().lock(name), open_store()
        mine.acquire(timeout=5)
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(other.lock(name).acquire, timeout=3)
            until(lambda: root.waits() == 1, "the wait on the server")
            end = time.monotonic() + 3
            ((pid,),) = root("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
            os.kill(pid, signal.SIGSTOP)
            try:
                mine.release()
                until(lambda: root.waits() == 0, "the grant")
                until(lambda: time.monotonic() > end, "the end of the wait")
            finally:
                os.kill(pid, signal.SIGCONT)
            assert not waiter.result(WAIT_TIMEOUT)
        assert root("SELECT * FROM pg_locks WHERE locktype = 'advisory'") == []

    def test_transaction_pooler_is_refused(self, pooled: str, name: str) -> None:
        locks = create("pooled", {"BACKEND": self.path, "LOCATION": pooled})
        with pytest.raises(LockMisuse, match="PgBouncer"):
            locks.lock(name).acquire()
        assert not locks.backend.pinned
        locks.close()
