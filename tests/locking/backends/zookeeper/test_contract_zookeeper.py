"""The contract on a real ensemble of three."""

import pytest

from tests.locking.backends.contract import Contract
from tests.locking.backends.store_drivers import ZooKeeperDriver


class TestZooKeeper(Contract):
    path = "locking.backends.zookeeper.ZooKeeperBackend"
    down = "127.0.0.1:1"
    Driver = ZooKeeperDriver

    @pytest.fixture
    def options(self) -> dict[str, object]:
        return dict(ZooKeeperDriver.options)
