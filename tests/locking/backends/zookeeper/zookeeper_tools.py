"""Backends on real ensembles."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from devservers import ZooKeeper
from locking.backends.zookeeper.backend import ZooKeeperBackend
from locking.handler import create

PATH = "locking.backends.zookeeper.ZooKeeperBackend"


def connected(hosts: str, path: str = PATH, **options: Any) -> ZooKeeperBackend:
    """A backend with a short session of its own."""
    options = {"SESSION_TIMEOUT": 2.0, **options}
    backend = create("zookeeper", {"BACKEND": path, "LOCATION": hosts, "OPTIONS": options}).backend
    backend.probe()
    return backend


@pytest.fixture
def backend(zookeeper: ZooKeeper) -> Iterator[ZooKeeperBackend]:
    made = connected(zookeeper.hosts)
    yield made
    made.close()


@pytest.fixture
def other(zookeeper: ZooKeeper) -> Iterator[ZooKeeperBackend]:
    """A second client, with a session of its own."""
    made = connected(zookeeper.hosts)
    yield made
    made.close()


@pytest.fixture
def name() -> str:
    return f"zookeeper:{uuid.uuid4().hex}"
