"""The herd of the textbook ZooKeeper lock beside the queue."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from devservers import ZooKeeper
from devservers.faults.waiting import WAIT_TIMEOUT, until
from tests.locking.backends.zookeeper.zookeeper_tools import PATH, connected, name
from tests.locking.calls import store_of

__all__ = ["name"]

HERD = "loadtest.recipes.zookeeper_herd.ZooKeeperHerdBackend"


class TestHerd:
    """F7: watch events per release with six waiters, each in a session of its own."""

    WAITERS = 6

    def events(self, path: str, zookeeper: ZooKeeper, name: str) -> list[int]:
        """Return the number of watch events that each release caused."""
        woken: list[int] = []
        releases = 0
        backends = [connected(zookeeper.hosts, path) for _ in range(self.WAITERS + 1)]

        def count(event: Any, happened: Any) -> None:
            woken.append(releases)  # not a count: six threads would lose some
            happened(event)

        try:
            for backend in backends:
                session = backend.session
                assert session is not None
                happened = session.node_changed
                session.node_changed = (  # type: ignore[method-assign]
                    lambda event, happened=happened: count(event, happened)
                )
            go_on = [threading.Event() for _ in backends]
            holders: list[int] = []

            def take(number: int) -> None:
                with store_of(backends[number]).lock(name, timeout=WAIT_TIMEOUT * 2):
                    holders.append(number)
                    assert go_on[number].wait(WAIT_TIMEOUT * 2)

            with ThreadPoolExecutor(len(backends)) as pool:
                done = [pool.submit(take, 0)]
                until(lambda: holders, "the first grant")
                done += [pool.submit(take, number) for number in range(1, len(backends))]
                for left in range(self.WAITERS, 0, -1):
                    until(lambda left=left: self.are_watching(zookeeper, left), "all watching")
                    releases += 1
                    go_on[holders[-1]].set()
                    until(lambda left=left: len(holders) == self.WAITERS - left + 2, "a grant")
                go_on[holders[-1]].set()
                for wait in done:
                    wait.result(WAIT_TIMEOUT)
        finally:
            for backend in backends:
                backend.close()
        return [woken.count(release) for release in range(1, self.WAITERS + 1)]

    def are_watching(self, zookeeper: ZooKeeper, number: int) -> bool:
        """Return True if all waiters watch a node and no server lags behind."""

        def read(command: bytes, name: str) -> list[int]:
            answers = [node.send(command).decode() for node in zookeeper.nodes]
            return [int(re.findall(rf"^{name}\s+(\w+)", answer, re.M)[0], 0) for answer in answers]

        if len(set(read(b"srvr", "Zxid:"))) > 1:
            return False
        return sum(read(b"mntr", "zk_watch_count")) >= number

    @pytest.mark.faults(row="F7", backend="zookeeper's recipe", fired="waiters counted")
    def test_recipe_wakes_every_waiter(self, zookeeper: ZooKeeper, name: str) -> None:
        assert self.events(HERD, zookeeper, name) == [6, 5, 4, 3, 2, 1]

    @pytest.mark.faults(row="F7", backend="zookeeper", fired="waiters counted")
    def test_queue_wakes_one_waiter(self, zookeeper: ZooKeeper, name: str) -> None:
        assert self.events(PATH, zookeeper, name) == [1] * self.WAITERS

    def test_recipe_excludes(self, zookeeper: ZooKeeper, name: str) -> None:
        backends = [connected(zookeeper.hosts, HERD) for _ in range(3)]
        inside: list[int] = []
        tokens = []

        def work(number: int) -> None:
            for _ in range(10):
                with store_of(backends[number]).lock(name, timeout=WAIT_TIMEOUT) as lease:
                    inside.append(number)
                    assert inside == [number]
                    tokens.append(lease.token)
                    inside.remove(number)

        try:
            with ThreadPoolExecutor(3) as pool:
                for done in [pool.submit(work, number) for number in range(3)]:
                    done.result(WAIT_TIMEOUT * 2)
            assert not backends[0].queue(name)
        finally:
            for backend in backends:
                backend.close()
        assert tokens == sorted(set(tokens))
