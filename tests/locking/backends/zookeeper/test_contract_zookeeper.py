"""The contract on a real ensemble of three, and the check of the settings."""

from typing import Any

import pytest

from locking.backends.zookeeper.backend import ZooKeeperBackend
from tests.locking.backends.contract import Contract
from tests.locking.backends.store_drivers import ZooKeeperDriver


class TestZooKeeper(Contract):
    path = "locking.backends.zookeeper.ZooKeeperBackend"
    down = "127.0.0.1:1"
    Driver = ZooKeeperDriver

    @pytest.fixture
    def options(self) -> dict[str, object]:
        return dict(ZooKeeperDriver.options)


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ({}, []),
        ({"LOCATION": ""}, ["locking.E041"]),
        ({"OPTIONS": {"SESSION_TIMEOUT": 0}}, ["locking.E012"]),
        ({"OPTIONS": {"SESSION_TIMEOUT": -1.0}}, ["locking.E012"]),
        ({"OPTIONS": {"SESSION_TIMEOUT": 61}}, ["locking.E012"]),
        ({"OPTIONS": {"SESSION_TIMEOUT": "6"}}, ["locking.E012"]),
        ({"OPTIONS": {"CONNECT_TIMEOUT": 0}}, ["locking.E012"]),
        ({"OPTIONS": {"PREFIX": "locks"}}, ["locking.E012"]),
        ({"OPTIONS": {"PREFIX": "/"}}, ["locking.E012"]),
        ({"OPTIONS": {"SESION_TIMEOUT": 6}}, ["locking.E011"]),
    ],
)
def test_bad_settings_are_reported(entry: dict[str, Any], found: list[str]) -> None:
    whole = {"LOCATION": "127.0.0.1:1", **entry}
    assert [message.id for message in ZooKeeperBackend.check("zk", whole)] == found
