"""The contract on a real ensemble of three."""

import pytest

from devservers import ZooKeeper
from tests.locking.backends.contract import Contract


class TestZooKeeper(Contract):
    path = "locking.backends.zookeeper.ZooKeeperBackend"
    down = "127.0.0.1:1"
    KILLS = 9  # three times all slots; each waits for the end of a session

    @pytest.fixture
    def location(self, zookeeper: ZooKeeper) -> str:
        return zookeeper.hosts

    @pytest.fixture
    def options(self) -> dict[str, object]:
        return {"SESSION_TIMEOUT": 2.0}
