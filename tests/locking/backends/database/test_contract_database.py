"""The contract on the shop's own database: SQLite, and MariaDB with GET_LOCK in its pass.

Their faults are those of a private MariaDB, in every pass.
"""

import pytest

from tests.locking.backends.contract import Contract, FaultsOnly
from tests.locking.backends.store_drivers import MariaDbDriver, MariaDbSessions


class OnDatabase(Contract):
    test_unreachable_store_fails_in_bounded_time = None

    @pytest.fixture
    def location(self, database_url: str) -> str:
        return "default"

    @pytest.fixture
    def env(self, database_url: str) -> dict[str, str]:
        return {"DATABASE_URL": database_url}


@pytest.mark.stores
class TestDatabase(OnDatabase):
    path = "locking.backends.database.DatabaseBackend"


@pytest.mark.only("mysql")
class TestMySQLSession(OnDatabase):
    path = "locking.backends.mysql_session.MySQLSessionBackend"


class TestDatabaseFaults(FaultsOnly):
    store = "database on MariaDB"
    path = TestDatabase.path
    Driver = MariaDbDriver


class TestMySQLSessionFaults(FaultsOnly):
    path = TestMySQLSession.path
    Driver = MariaDbSessions
