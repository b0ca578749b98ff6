"""The contract on the shop's own database: SQLite, and MariaDB with GET_LOCK in its pass."""

import pytest

from tests.locking.backends.contract import Contract


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
