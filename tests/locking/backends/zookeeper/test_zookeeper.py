"""The ZooKeeper backend on real ensembles: settings, queue, sessions, FAULTS row 13."""

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from devservers import ZooKeeper
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost, LockTimeout, LockUnavailable
from locking.backends.zookeeper.backend import ZooKeeperBackend
from locking.handler import create
from locking.testing.calls import in_thread, until_available, within
from tests.devservers.faults.interception import ExpireSession, InterceptingProxy
from tests.fault_rows import SLACK
from tests.locking.calls import acquired, store_of

PATH = "locking.backends.zookeeper.ZooKeeperBackend"


def connected(hosts: str, path: str = PATH, **options: Any) -> ZooKeeperBackend:
    """A backend with a short session of its own."""
    options = {"SESSION_TIMEOUT": 4.0, **options}
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


@pytest.fixture
def proxy(zookeeper: ZooKeeper) -> Iterator[InterceptingProxy]:
    with InterceptingProxy(zookeeper.nodes[0].port) as proxy:
        yield proxy


class TestOptions:
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
    def test_timed_out_waits_name_the_holder_and_leave_nothing(
        self, backend: ZooKeeperBackend, name: str
    ) -> None:
        with store_of(backend).lock(name, timeout=5) as lease, ThreadPoolExecutor(8) as others:
            before = backend.queue(name)
            for timeout in (0, 0.2):
                with pytest.raises(LockTimeout) as caught:
                    in_thread(store_of(backend).lock(name, timeout=timeout).__enter__)
                assert caught.value.holder == lease.owner
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

    def test_names_that_are_used_once_leave_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
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
                with ThreadPoolExecutor(8) as pool:
                    list(pool.map(take, range(400)))
                session = backend.session
                assert not session.nodes
                assert not session.pending_deletes
                assert not session._waiting
                assert not any(session.client._data_watchers.values())
                until(lambda: nodes() <= before, "the server removing empty parents")
            finally:
                backend.close()


class TestSession:
    def test_second_call_to_a_down_ensemble_fails_at_once(self, name: str) -> None:
        server = ZooKeeper(1)
        backend = ZooKeeperBackend("down", location=server.hosts, options={"CONNECT_TIMEOUT": 4.0})
        try:
            with pytest.raises(LockUnavailable):
                backend.probe()
            with within(10):  # three would take 12 s
                for _ in range(3):
                    with pytest.raises(LockUnavailable):
                        store_of(backend).lock(name).acquire(timeout=60)
            server.start()
            until_available(backend.probe)
            with store_of(backend).lock(name, timeout=5):
                assert len(backend.queue(name)) == 1
        finally:
            backend.close()
            server.stop()


@pytest.fixture
def far(proxy: InterceptingProxy) -> Iterator[ZooKeeperBackend]:
    """A client that reaches the ensemble through the proxy."""
    made = connected(proxy.url)
    yield made
    made.close()


class TestHolder:
    def test_lease_of_a_partitioned_holder_ends_in_time(
        self, proxy: InterceptingProxy, far: ZooKeeperBackend, backend: ZooKeeperBackend, name: str
    ) -> None:
        """Packets are dropped: the lease ends before the next grant."""
        lost: list[object] = []
        lock = store_of(far).lock(name, on_lost=lost.append)
        lease = acquired(lock, timeout=5)
        proxy.hold()
        with store_of(backend).lock(name, timeout=WAIT_TIMEOUT):
            granted = time.monotonic()
            assert lease.lost
            assert lease.deadline <= granted
            until(lambda: lost, "the lease being marked as lost")
        proxy.cut()
        proxy.resume()
        with pytest.raises(LockLost):
            lock.release()

    def test_lease_survives_a_reconnect_and_never_exceeds_the_session_timeout(
        self, proxy: InterceptingProxy, far: ZooKeeperBackend, name: str
    ) -> None:
        """So a process that was stopped for longer knows at once that it holds nothing."""
        with store_of(far).lock(name, timeout=5) as lease:
            assert 0 < lease.remaining <= 4
            proxy.cut()
            first = lease.deadline
            until(lambda: lease.deadline > first or lease.lost, "the session going on")
            assert 0 < lease.remaining <= 4
            until(lambda: time.monotonic() > first + 0.2, "the first deadline passing")
            lease.check()
        assert not far.queue(name)


class TestWaiter:
    """Row 13."""

    @pytest.fixture
    def waiter(self, proxy: InterceptingProxy) -> Iterator[ZooKeeperBackend]:
        made = connected(proxy.url, SESSION_TIMEOUT=8.0, CONNECT_TIMEOUT=1.0)
        yield made
        made.close()

    @pytest.mark.faults(row=13, backend="zookeeper")
    def test_release_during_a_disconnect_is_noticed(
        self,
        proxy: InterceptingProxy,
        waiter: ZooKeeperBackend,
        backend: ZooKeeperBackend,
        name: str,
    ) -> None:
        served = []

        def wait(through: ZooKeeperBackend, who: str) -> None:
            with store_of(through).lock(name, timeout=WAIT_TIMEOUT):
                served.append(who)

        lock = store_of(backend).lock(name)
        lock.acquire(timeout=5)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(wait, waiter, "cut off")
            until(lambda: len(backend.queue(name)) == 2, "the first one queueing")
            second = pool.submit(wait, backend, "behind")
            until(lambda: len(backend.queue(name)) == 3, "the second one queueing")
            before = backend.queue(name)[1:]
            proxy.cut(refuse=True)
            until(lambda: not waiter.session.up.is_set(), "the connection being lost")
            lock.release()
            assert backend.queue(name) == before, "a queue position was lost"
            proxy.accept()
            first.result(WAIT_TIMEOUT)
            second.result(WAIT_TIMEOUT)
        assert served == ["cut off", "behind"]
        assert not backend.queue(name)

    @pytest.mark.parametrize("when", ["while it waits", "before it is in the queue"])
    def test_waiter_that_gives_up_offline_leaves_no_node(
        self,
        when: str,
        proxy: InterceptingProxy,
        waiter: ZooKeeperBackend,
        backend: ZooKeeperBackend,
        name: str,
    ) -> None:
        """Its node is deleted with the next connection, not at the end of its session."""
        session = waiter.session.client.client_id
        with store_of(backend).lock(name, timeout=5), ThreadPoolExecutor(1) as pool:
            if when == "while it waits":
                waiting = pool.submit(store_of(waiter).lock(name).acquire, timeout=3.0)
                watchers = waiter.session.client._data_watchers
                until(lambda: any(watchers.values()), "the other one watching its predecessor")
                proxy.cut(refuse=True)
            else:
                proxy.hold()
                waiting = pool.submit(store_of(waiter).lock(name).acquire, timeout=0.2)
            with pytest.raises(LockUnavailable):
                waiting.result(WAIT_TIMEOUT)
            proxy.accept()
            proxy.resume()
            until(
                lambda: waiter.session and not waiter.session.pending_deletes, "the pending delete"
            )
            until(lambda: len(backend.queue(name)) == 1, "the node being deleted")
            assert waiter.session.client.client_id == session, "it ended"

    def test_cut_before_the_watch_keeps_the_timeout(
        self,
        monkeypatch: pytest.MonkeyPatch,
        proxy: InterceptingProxy,
        waiter: ZooKeeperBackend,
        backend: ZooKeeperBackend,
        name: str,
    ) -> None:
        """A request that kazoo keeps for the next connection waits no longer than its caller."""
        session = waiter.session
        assert session is not None
        watch = session.wait_gone

        def cut_first(*args: Any) -> None:
            proxy.cut(refuse=True)
            until(lambda: not session.up.is_set(), "the connection being lost")
            watch(*args)

        monkeypatch.setattr(session, "wait_gone", cut_first)
        with store_of(backend).lock(name, timeout=5):
            with within(1.0 + SLACK), pytest.raises(LockUnavailable):
                store_of(waiter).lock(name).acquire(timeout=0.5)
            proxy.accept()
            until(lambda: len(backend.queue(name)) == 1, "the node being deleted")

    def test_waiter_with_expired_session_queues_again(
        self,
        zookeeper: ZooKeeper,
        waiter: ZooKeeperBackend,
        backend: ZooKeeperBackend,
        name: str,
    ) -> None:
        lock = store_of(backend).lock(name)
        lock.acquire(timeout=5)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store_of(waiter).lock(name).acquire, timeout=WAIT_TIMEOUT)
            until(lambda: len(backend.queue(name)) == 2, "the other one queueing")
            before = backend.queue(name)
            ExpireSession(zookeeper.hosts, waiter.session.client.client_id).inject()
            until(
                lambda: len(now := backend.queue(name)) == 2 and now[1] > before[1],
                "the other one queueing again",
            )
            lock.release()
            assert waiting.result(WAIT_TIMEOUT)
