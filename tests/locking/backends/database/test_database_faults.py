"""The database backend on a MariaDB that loses replies or refuses: FAULTS rows 10 and 17."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pytest_django import DjangoDbBlocker

from devservers import MariaDb
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockUnavailable
from locking.backends.database.backend import DatabaseBackend
from locking.claims import Claim
from locking.testing.calls import acquire_and_release, in_thread, within
from tests.devservers.faults.interception import InterceptingProxy
from tests.locking.backends.database.database_tools import (
    Root,
    alias_for,
    database,
    root,
    server,
    short_response_timeout,
)
from tests.locking.calls import store_of

__all__ = ["root", "server", "short_response_timeout"]

ROW = "SELECT owner, token FROM locking_lockrow WHERE name = '%s'"


@pytest.fixture(scope="module")
def alias(server: MariaDb, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    with alias_for(server.url, "faulty", django_db_blocker) as alias:
        yield alias


@pytest.fixture
def backend(alias: str) -> Iterator[DatabaseBackend]:
    made = database(alias)
    yield made
    made.close()


class TestLostReplies:
    @pytest.fixture
    def proxy(self, server: MariaDb) -> Iterator[InterceptingProxy]:
        with InterceptingProxy(server.port) as proxy:
            yield proxy

    @pytest.fixture
    def far(
        self, server: MariaDb, alias: str, proxy: InterceptingProxy
    ) -> Iterator[DatabaseBackend]:
        url = server.url.replace(f":{server.port}", f":{proxy.port}")
        with alias_for(url, "far") as far:
            made = database(far)
            yield made
            made.close()

    def test_release_without_a_connection_is_repeated(
        self, far: DatabaseBackend, backend: DatabaseBackend, proxy: InterceptingProxy
    ) -> None:
        lock = store_of(far).lock("unreachable", ttl=60)
        assert lock.acquire(timeout=5)
        proxy.cut(refuse=True)
        with pytest.raises(LockUnavailable):
            lock.release()
        proxy.accept()
        with within(30):
            assert acquire_and_release(store_of(backend), "unreachable", WAIT_TIMEOUT)

    def test_extension_without_a_reply_leaves_time_for_another(
        self, far: DatabaseBackend, proxy: InterceptingProxy
    ) -> None:
        claim = Claim(name="stalled renewal", owner="me", ttl=6)
        grant = far.acquire(claim, 5)
        far.probe()  # on an open connection, which the extension uses, too
        proxy.hold()
        with within(4), pytest.raises(LockUnavailable):  # not the 5 s of other statements
            far.extend(claim, grant.token, 6)
        proxy.resume()
        until(lambda: not far.pool.breaker.is_open, "the reply to a probe")
        assert far.extend(claim, grant.token, 6) > grant.deadline
        far.release(claim, grant.token)


class TestRefusals:
    """Row 17: an error in bounded time, never a grant, and recovery afterwards."""

    @pytest.fixture
    def app(self, server: MariaDb, alias: str, root: Root) -> Iterator[DatabaseBackend]:
        """A user without administrator rights, so limits apply."""
        root("CREATE OR REPLACE USER app@'%' IDENTIFIED BY 'pw'")
        root("GRANT ALL ON shop.* TO app@'%'")
        with alias_for(server.url.replace("root@", "app:pw@"), "app") as limited:
            made = database(limited)
            yield made
            made.close()

    def refused(self, backend: DatabaseBackend, number: int, name: str) -> None:
        with within(10), pytest.raises(LockUnavailable) as caught:
            store_of(backend).lock(name).acquire(timeout=0.5)
        assert str(number) in str(caught.value)
        assert not store_of(backend).held

    @pytest.mark.faults(row=17, backend="database on MariaDB", fired="connections used up")
    def test_1040_too_many_connections(self, app: DatabaseBackend, root: Root) -> None:
        root("SET GLOBAL max_connections = 10")
        # One connection above the limit is kept for administrators.
        crowd = [app.pool.open() for _ in range(10 - 1)]
        try:
            self.refused(app, 1040, "crowd")
        finally:
            root("SET GLOBAL max_connections = 400")
            for session in crowd:
                session.close()
        assert in_thread(acquire_and_release, store_of(app), "crowd", 5)

    @pytest.mark.faults(row=17, backend="database on MariaDB", fired="row locked by a transaction")
    def test_1205_row_locked_by_a_transaction(self, app: DatabaseBackend, root: Root) -> None:
        assert in_thread(acquire_and_release, store_of(app), "row", 5)
        root("START TRANSACTION")
        root("SELECT * FROM locking_lockrow WHERE name = 'row' FOR UPDATE")
        self.refused(app, 1205, "row")
        with ThreadPoolExecutor(1) as pool:
            before = root.status("Innodb_row_lock_waits")
            waiter = pool.submit(acquire_and_release, store_of(app), "row")
            until(lambda: root.status("Innodb_row_lock_waits") > before + 1, "a second attempt")
            assert not waiter.done()
            root("ROLLBACK")
            assert waiter.result(WAIT_TIMEOUT)

    @pytest.mark.faults(row=17, backend="database on MariaDB")
    def test_1213_deadlock_is_retried(self, app: DatabaseBackend, root: Root) -> None:
        assert in_thread(acquire_and_release, store_of(app), "dead", 5)
        root(
            "CREATE TRIGGER deadlock BEFORE UPDATE ON locking_lockrow FOR EACH ROW "
            "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'"
        )
        try:
            with ThreadPoolExecutor(1) as pool:
                before = root.requests()
                waiter = pool.submit(acquire_and_release, store_of(app), "dead")
                until(lambda: root.requests() > before + 6, "further attempts")
                assert not waiter.done()
                root("DROP TRIGGER deadlock")
                assert waiter.result(WAIT_TIMEOUT)
        finally:
            root("DROP TRIGGER IF EXISTS deadlock")

    @pytest.mark.faults(row=17, backend="database on MariaDB")
    def test_1290_read_only(self, app: DatabaseBackend, root: Root) -> None:
        root("SET GLOBAL read_only = 1")
        try:
            self.refused(app, 1290, "read-only")
        finally:
            root("SET GLOBAL read_only = 0")
        assert in_thread(acquire_and_release, store_of(app), "read-only", 5)

    def test_a_wrong_password(self, server: MariaDb, app: DatabaseBackend) -> None:
        with alias_for(server.url.replace("root@", "app:wrong@"), "wrong") as alias:
            self.refused(database(alias), 1045, "password")


def test_server_that_is_down() -> None:
    server = MariaDb()
    with alias_for(server.url, "down") as alias:
        backend = database(alias)
        with within(10):
            with pytest.raises(LockUnavailable):
                backend.probe()
            with pytest.raises(LockUnavailable), store_of(backend).lock("down", timeout=1):
                pass
    server.stop()
