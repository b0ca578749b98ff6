"""The contract on a real PostgreSQL, directly and behind PgBouncer in transaction mode."""

from collections.abc import Iterator
from typing import Any

import pytest

from devservers import PostgreSql
from tests.locking.backends.contract import Contract
from tests.locking.backends.database.database_tools import alias_for
from tests.locking.backends.database.postgresql_tools import alias, pooled, root, server
from tests.locking.backends.store_drivers import PostgreSqlDriver, PostgreSqlSessions

__all__ = ["alias", "pooled", "root", "server"]


@pytest.fixture(scope="module", autouse=True)
def nowhere() -> Iterator[None]:
    with alias_for("postgresql://postgres@127.0.0.1:1/shop", "nowhere"):
        yield


class OnPostgreSQL(Contract):
    down = "nowhere"

    @pytest.fixture
    def location(self, alias: str) -> str:
        return alias

    @pytest.fixture
    def other_conf(self, conf: dict[str, Any]) -> dict[str, Any]:
        """In another process it is the default database."""
        return {**conf, "LOCATION": "default"}

    @pytest.fixture
    def env(self, server: PostgreSql) -> dict[str, str]:
        return {"DATABASE_URL": server.url}


class OnDatabase(OnPostgreSQL):
    store = "database on PostgreSQL"
    path = "locking.backends.database.DatabaseBackend"


class TestDatabase(OnDatabase):
    Driver = PostgreSqlDriver


class TestBehindPgBouncer(OnDatabase):
    """The other process is connected directly."""

    test_killed_holder_is_replaced = None
    test_killed_waiter_is_skipped = None
    test_unreachable_store_fails_in_bounded_time = None

    @pytest.fixture
    def location(self, pooled: str) -> str:
        return pooled


class TestSession(OnPostgreSQL):
    Driver = PostgreSqlSessions
    path = "locking.backends.postgresql_session.PostgreSQLSessionBackend"
