"""The contract on a real ensemble of three."""

import pytest

from devservers.faults.waiting import until
from locking.testing.contract_base import Open
from tests.locking.backends.contract import Contract
from tests.locking.backends.store_drivers import ZooKeeperDriver


class TestZooKeeper(Contract):
    path = "locking.backends.zookeeper.ZooKeeperBackend"
    down = "127.0.0.1:1"
    Driver = ZooKeeperDriver

    @pytest.fixture
    def options(self) -> dict[str, object]:
        return dict(ZooKeeperDriver.options)

    def test_server_without_the_others_counts_as_down(
        self, driver: ZooKeeperDriver, open_store: Open
    ) -> None:
        """It runs, and replies that it serves nothing."""
        locks = open_store()
        for node in driver.servers[:2]:
            node.kill()
        until(lambda: len(locks.backend.nodes_down()) == 3, "the third one noticing")
