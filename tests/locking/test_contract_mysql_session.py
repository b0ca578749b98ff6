"""The contract on GET_LOCK, in the pass whose database is MariaDB."""

import pytest

from tests.locking.contract import Contract


@pytest.mark.only("mysql")
class TestMySQLSession(Contract):
    path = "locking.backends.mysql_session.MySQLSessionBackend"

    test_a_store_that_is_down_says_so_in_bounded_time = None

    @pytest.fixture
    def location(self, database_url: str) -> str:
        return "default"

    @pytest.fixture
    def env(self, database_url: str) -> dict[str, str]:
        return {"DATABASE_URL": database_url}
