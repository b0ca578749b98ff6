"""The ZooKeeper backend: its queue, its sessions, its settings."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from devservers import ZooKeeper
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost, LockUnavailable
from locking.backends.zookeeper.backend import ZooKeeperBackend
from locking.testing.calls import in_thread, within
from tests.locking.backends.zookeeper.zookeeper_tools import PATH, backend, connected, name, other
from tests.locking.calls import acquired, store_of

__all__ = ["backend", "name", "other"]


class TestSettings:
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
    def test_bad_settings_are_reported(self, entry: dict[str, Any], found: list[str]) -> None:
        whole = {"BACKEND": PATH, "LOCATION": "127.0.0.1:1", **entry}
        assert [message.id for message in ZooKeeperBackend.check("zk", whole)] == found

    def test_prefix_and_chroot_separate_locks(
        self, zookeeper: ZooKeeper, backend: ZooKeeperBackend, name: str
    ) -> None:
        with closing(connected(f"{zookeeper.hosts}/elsewhere", PREFIX="/a/b")) as other:
            with store_of(backend).lock(name, timeout=5), store_of(other).lock(name, timeout=5):
                client, path = backend.session.client, f"/elsewhere/a/b/{name}"
                client.sync(path)  # the server that this one asks may lag behind the other's
                assert client.exists(path)
            assert not other.inspect()

    def test_session_timeout_is_the_granted_one(self, zookeeper: ZooKeeper) -> None:
        for asked, granted in ((60.0, 10.0), (0.1, 1.0), (3.0, 3.0)):  # two to twenty ticks
            backend = connected(zookeeper.hosts, SESSION_TIMEOUT=asked)
            assert backend.session.timeout == pytest.approx(granted)
            backend.close()


class TestQueue:
    def test_token_is_the_zxid_of_the_creation(self, backend: ZooKeeperBackend, name: str) -> None:
        with store_of(backend).lock(name, timeout=5) as lease:
            path = backend.session.nodes[lease.owner]
            assert backend.session.client.exists(path).czxid == lease.token

    def test_timed_out_waits_leave_nothing(self, backend: ZooKeeperBackend, name: str) -> None:
        with store_of(backend).lock(name, timeout=5), ThreadPoolExecutor(8) as others:
            before = backend.queue(name)
            waits = [
                others.submit(store_of(backend).lock(name).acquire, timeout=0.01) for _ in range(80)
            ]
            assert not any(wait.result(WAIT_TIMEOUT) for wait in waits)
            assert backend.queue(name) == before
            session = backend.session
            assert not session._waiting
            watchers = session.client._data_watchers
            assert sum(len(of_path) for of_path in watchers.values()) <= 1 + len(waits) // 8
        until(lambda: not any(watchers.values()), "the holder's node taking its watch along")

    def test_4000_names_leave_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        flags = ["-Dznode.container.checkIntervalMs=500", "-Dznode.container.maxPerMinute=1000000"]
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", " ".join(flags))
        with ZooKeeper(1) as server:
            backend = connected(server.hosts, SESSION_TIMEOUT=10.0)

            def take(number: int) -> None:
                with store_of(backend).lock(f"leak:{number}", timeout=WAIT_TIMEOUT, renew=False):
                    pass

            def nodes() -> int:
                lines = server.nodes[0].send(b"mntr").decode().splitlines()
                counts = dict(line.split("\t", 1) for line in lines if "\t" in line)
                return int(counts["zk_znode_count"])

            try:
                take(0)
                before = nodes()
                files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
                with ThreadPoolExecutor(24) as pool:
                    list(pool.map(take, range(4_000)))
                session = backend.session
                assert not store_of(backend).held
                assert not session.nodes
                assert not session.pending_deletes
                assert not session._waiting
                assert not any(session.client._data_watchers.values())
                assert len(os.listdir("/proc/self/fd")) <= files
                assert threading.active_count() <= threads
                until(lambda: nodes() <= before, "the server removing empty parents")
            finally:
                backend.close()


class TestSession:
    def test_broken_lock_is_marked_as_lost(self, backend: ZooKeeperBackend, name: str) -> None:
        lost = threading.Event()
        lock = store_of(backend).lock(name, on_lost=lambda lease: lost.set())
        lease = acquired(lock, timeout=5)
        assert backend.break_lock(name)
        assert lost.wait(WAIT_TIMEOUT)
        assert lease.lost
        for call in (lock.extend, lock.release):
            with pytest.raises(LockLost):
                call()

    def test_lease_never_exceeds_the_session_timeout(
        self, backend: ZooKeeperBackend, name: str
    ) -> None:
        """So a process that was stopped for longer knows at once that it holds nothing."""
        with store_of(backend).lock(name, timeout=5) as lease:
            first = lease.deadline
            assert 0 < lease.remaining <= 2
            until(lambda: lease.deadline > first, "the session being found alive")
            assert 0 < lease.remaining <= 2
            until(lambda: time.monotonic() > first + 0.2, "the first deadline passing")
            lease.check()

    def test_close_releases_locks_and_use_opens_again(
        self, backend: ZooKeeperBackend, other: ZooKeeperBackend, name: str
    ) -> None:
        lock = store_of(other).lock(name)
        lease = acquired(lock, timeout=5)
        other.close()
        until(lambda: lease.lost, "the lease ending with the session")
        with pytest.raises(LockLost):
            lock.release()
        with store_of(backend).lock(name, timeout=1):
            assert not in_thread(store_of(other).lock(name).acquire, False)

    def test_second_call_to_a_down_ensemble_fails_at_once(self, name: str) -> None:
        server = ZooKeeper(1)
        backend = ZooKeeperBackend("down", location=server.hosts, options={"CONNECT_TIMEOUT": 1.0})
        try:
            with pytest.raises(LockUnavailable):
                backend.probe()
            with within(2.5):  # three would take 3 s
                for _ in range(3):
                    with pytest.raises(LockUnavailable):
                        store_of(backend).lock(name).acquire(timeout=60)
            server.start()

            def is_back() -> bool:
                try:
                    backend.probe()
                except LockUnavailable:
                    return False
                return True

            until(is_back, "the client finding the server")
            with store_of(backend).lock(name, timeout=5):
                assert len(backend.queue(name)) == 1
        finally:
            backend.close()
            server.stop()
