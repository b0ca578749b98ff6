"""Backends, and an ensemble whose nodes can be cut off from each other."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loadtest.faults.proxy import Proxy
from loadtest.servers import HOST, ZooKeeper
from locking.backends.zookeeper import ZooKeeperBackend
from locking.handler import create

PATH = "locking.backends.zookeeper.ZooKeeperBackend"


def conf(hosts: str, **options: Any) -> dict[str, Any]:
    """An entry of LOCKS, with a short session."""
    return {"BACKEND": PATH, "LOCATION": hosts, "OPTIONS": {"SESSION_TIMEOUT": 2.0, **options}}


def connected(hosts: str, path: str = PATH, **options: Any) -> ZooKeeperBackend:
    """A backend with a session of its own."""
    backend = create("zookeeper", {**conf(hosts, **options), "BACKEND": path})
    assert isinstance(backend, ZooKeeperBackend)
    backend.probe()
    return backend


@pytest.fixture
def backend(zookeeper: ZooKeeper) -> Iterator[ZooKeeperBackend]:
    made = connected(zookeeper.hosts)
    yield made
    made.close()


@pytest.fixture
def name() -> str:
    return f"zookeeper:{uuid.uuid4().hex}"


def queue(backend: ZooKeeperBackend, name: str) -> list[str]:
    """The nodes of a name, the holder's first."""
    nodes = backend._queue(backend._open(), backend._parent(name))
    return sorted(nodes, key=lambda node: node[-10:])


def elapsed(call: Callable[[], object]) -> float:
    """How long a call takes, in seconds."""
    started = time.monotonic()
    call()
    return time.monotonic() - started


class Partitioned(ZooKeeper):
    """Three nodes that reach each other only through proxies, so that one can be cut off.

    Node 1 dials node 2 at 127.1.0.2 and so on. In an election it also tells its own address, and
    would be dialled at that: the proxy puts the address there at which the other one has a proxy.
    A leader is given up after five ticks, as in ZooKeeper's sample configuration.
    """

    def __init__(self) -> None:
        super().__init__(3)
        self.links: list[tuple[set[int], Proxy]] = []
        for node, peer in itertools.permutations(self.nodes, 2):
            there, back = f"127.{node.myid}.0.{peer.myid}", f"127.{peer.myid}.0.{node.myid}"
            told = (f"{HOST}:".encode(), f"{back}:".encode())
            for port, _ in peer.peer_ports:
                proxy = Proxy(port, listen=(there, port), rewrite=told)
                self.links.append(({node.myid, peer.myid}, proxy))
            node.settings = [
                line.replace(HOST, there) if line.startswith(f"server.{peer.myid}=") else line
                for line in node.settings
            ]
        for node in self.nodes:
            node.settings[node.settings.index("syncLimit=10")] = "syncLimit=5"

    def cut_off(self, myid: int) -> None:
        """Lose every packet between this node and the others; clients still reach it."""
        for ends, proxy in self.links:
            if myid in ends:
                proxy.hold()

    def stop(self) -> None:
        super().stop()
        for _, proxy in self.links:
            proxy.close()


def leader(ensemble: ZooKeeper) -> Any:
    """The node that leads."""
    return next(node for node in ensemble.nodes if b"Mode: leader" in node.ask(b"srvr"))
