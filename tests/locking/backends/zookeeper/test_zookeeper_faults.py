"""FAULTS rows 1, 3, 8, 12, 13 and 14 at the level of the lock, on real ensembles."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.exceptions import ConnectionLoss

from devservers import ZooKeeper
from devservers.faults.ensemble import FailLeader, LeaderFailure, Partitioned
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost, LockUnavailable
from locking.backends.zookeeper.backend import ZooKeeperBackend
from locking.testing.calls import within
from tests.devservers.faults.interception import ExpireSession, InterceptingProxy
from tests.fault_rows import SLACK
from tests.locking.backends.zookeeper.zookeeper_tools import backend, connected, name, other
from tests.locking.calls import acquired, store_of

__all__ = ["backend", "name", "other"]

SESSION = 2.0


@pytest.fixture
def proxy(zookeeper: ZooKeeper) -> Iterator[InterceptingProxy]:
    with InterceptingProxy(zookeeper.nodes[0].port) as proxy:
        yield proxy


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
        lost_at: list[float] = []
        lock = store_of(far).lock(name, on_lost=lambda lease: lost_at.append(time.monotonic()))
        lease = acquired(lock, timeout=5)
        proxy.hold()
        with store_of(backend).lock(name, timeout=WAIT_TIMEOUT):
            granted = time.monotonic()
            assert lease.lost
            assert lease.deadline <= granted
            until(lambda: lost_at, "the lease being marked as lost")
            assert lost_at[0] - granted < SESSION
        proxy.cut()
        proxy.resume()
        with pytest.raises(LockLost):
            lock.release()

    def test_lease_survives_a_reconnect(
        self, proxy: InterceptingProxy, far: ZooKeeperBackend, name: str
    ) -> None:
        with store_of(far).lock(name, timeout=5) as lease:
            proxy.cut()
            first = lease.deadline
            until(lambda: lease.deadline > first or lease.lost, "the session going on")
            lease.check()
        assert not far.queue(name)

    def test_failed_release_is_repeated_later(
        self, zookeeper: ZooKeeper, backend: ZooKeeperBackend, name: str
    ) -> None:
        with InterceptingProxy(zookeeper.nodes[0].port) as proxy:
            other = connected(proxy.url, SESSION_TIMEOUT=8.0, CONNECT_TIMEOUT=0.5)
            lock = store_of(other).lock(name)
            lock.acquire(timeout=5)
            proxy.cut(refuse=True)
            with within(1 + SLACK), pytest.raises(LockUnavailable):
                lock.release()
            assert len(backend.queue(name)) == 1
            recovered_at = time.monotonic()
            proxy.accept()
            with store_of(backend).lock(name, timeout=WAIT_TIMEOUT):
                assert time.monotonic() - recovered_at < 6, "freed by the session's end only"
            other.close()


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

    @pytest.mark.faults(row=10, backend="zookeeper", fired="answers lost")
    def test_token_survives_a_lost_queue_reply(
        self, backend: ZooKeeperBackend, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The connection breaks between two answers: the node's creation, and the queue."""
        client, answers = backend.session.client, []
        ask = client.get_children_async

        def lose(parent: str) -> object:
            reply = ask(parent)
            if not reply.wait(WAIT_TIMEOUT) or not reply.successful():
                return reply  # the queue is still empty
            answers.append(reply.value)
            if len(answers) not in (1, 3):  # again after the node was found by its owner
                return reply
            reply = client.handler.async_result()
            reply.set_exception(ConnectionLoss())
            return reply

        with monkeypatch.context() as patched:
            patched.setattr(client, "get_children_async", lose)
            lock = store_of(backend).lock(name)
            lease = acquired(lock, timeout=5)
        (node,) = backend.queue(name)
        made = client.exists(f"{backend._parent(name)}/{node}")
        assert lease.token == made.czxid
        assert len(answers) > 3
        lock.release()
        assert not backend.queue(name)

    def test_waiter_that_gives_up_offline_leaves_no_node(
        self,
        proxy: InterceptingProxy,
        waiter: ZooKeeperBackend,
        backend: ZooKeeperBackend,
        name: str,
    ) -> None:
        with store_of(backend).lock(name, timeout=5), ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store_of(waiter).lock(name).acquire, timeout=1.0)
            until(lambda: len(backend.queue(name)) == 2, "the other one queueing")
            proxy.cut(refuse=True)
            with pytest.raises(LockUnavailable):
                waiting.result(WAIT_TIMEOUT)
            assert len(backend.queue(name)) == 2
            recovered_at = time.monotonic()
            proxy.accept()
            until(lambda: len(backend.queue(name)) == 1, "the node being deleted")
            assert time.monotonic() - recovered_at < 6, "deleted by the session's end only"

    def test_late_creation_leaves_no_node(
        self,
        proxy: InterceptingProxy,
        waiter: ZooKeeperBackend,
        backend: ZooKeeperBackend,
        name: str,
    ) -> None:
        """The creation arrives after its caller has given up."""
        with store_of(backend).lock(name, timeout=5), ThreadPoolExecutor(1) as pool:
            proxy.hold()
            with pytest.raises(LockUnavailable):
                pool.submit(store_of(waiter).lock(name).acquire, timeout=0.2).result(WAIT_TIMEOUT)
            proxy.resume()
            until(
                lambda: waiter.session and not waiter.session.pending_deletes, "the pending delete"
            )
            assert len(backend.queue(name)) == 1

    def test_waiter_with_expired_session_queues_again(
        self,
        zookeeper: ZooKeeper,
        waiter: ZooKeeperBackend,
        backend: ZooKeeperBackend,
        name: str,
        caplog: pytest.LogCaptureFixture,
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
        assert any("joining the queue again" in record.getMessage() for record in caplog.records)


class TestLeader:
    """Row 14: three sessions contend for one lock while the leader fails."""

    @pytest.mark.faults(row=14, backend="zookeeper")
    @pytest.mark.parametrize(("how", "within"), [("kill", 3.0), ("stop", 6.0), ("cut off", 8.0)])
    def test_one_holder_throughout(self, how: LeaderFailure, within: float, name: str) -> None:
        """The successor of a holder at the old leader may wait for the end of its session."""
        session = 4.0
        with Partitioned() as ensemble:
            backends = [connected(ensemble.hosts, SESSION_TIMEOUT=session) for _ in range(3)]
            inside: list[int] = []
            overlaps: list[object] = []
            grants: list[tuple[float, int]] = []
            over = threading.Event()

            def work(number: int) -> None:
                lock = store_of(backends[number]).lock(name, timeout=WAIT_TIMEOUT)
                while not over.is_set():
                    try:
                        with lock as lease:
                            inside.append(number)
                            others = [one for one in inside if one != number]
                            if others and not lease.lost:
                                overlaps.append(others)
                            grants.append((time.monotonic(), lease.token))
                            over.wait(0.005)
                            inside.remove(number)
                    except (LockUnavailable, LockLost):
                        continue

            fault = FailLeader(ensemble, how)
            try:
                with ThreadPoolExecutor(3) as pool:
                    workers = [pool.submit(work, number) for number in range(3)]
                    try:
                        until(lambda: len(grants) > 20, "the lock going round")
                        # A grant by the new leader, not one that the old leader still processed.
                        epoch = grants[-1][1] >> 32
                        failed_at = time.monotonic()
                        fault.inject()
                        assert fault.injected
                        until(lambda: grants[-1][1] >> 32 > epoch, "a grant by a new leader")
                        after = next(at for at, token in grants if token >> 32 > epoch)
                    finally:
                        over.set()
                    for worker in workers:
                        worker.result(WAIT_TIMEOUT)
                assert not overlaps
                tokens = [token for _, token in grants]
                assert tokens == sorted(set(tokens))
                assert after - failed_at < within + session
                fault.recover()  # the old leader follows the new one
            finally:
                for backend in backends:
                    backend.close()
