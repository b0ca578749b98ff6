"""The contract on the shop's own database: SQLite, and MariaDB in the second pass."""

import pytest

from tests.locking.contract import Contract


@pytest.mark.stores
class TestDatabase(Contract):
    path = "locking.backends.database.DatabaseBackend"

    test_a_store_that_is_down_says_so_in_bounded_time = None

    @pytest.fixture
    def location(self, database_url: str) -> str:
        return "default"

    @pytest.fixture
    def env(self, database_url: str) -> dict[str, str]:
        return {"DATABASE_URL": database_url}
