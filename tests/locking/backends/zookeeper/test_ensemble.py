"""A ZooKeeper ensemble whose leader fails or is cut off, FAULTS row 14."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from devservers import start_all
from devservers.faults.ensemble import FailLeader, LeaderFailure, Partitioned, leader
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import Lease, LockLost, LockUnavailable
from tests.fault_rows import SLACK
from tests.locking.backends.zookeeper.test_zookeeper import connected, name
from tests.locking.calls import acquired, store_of

__all__ = ["name"]


class TestLeader:
    """Row 14: three sessions contend for one lock while the leader fails."""

    @pytest.mark.faults(row=14, backend="zookeeper")
    @pytest.mark.parametrize(
        ("how", "within"),
        [
            pytest.param("kill", 3.0, marks=pytest.mark.long),
            pytest.param("stop", 6.0, marks=pytest.mark.long),
            ("cut off", 8.0),
        ],
    )
    def test_one_holder_throughout(self, how: LeaderFailure, within: float, name: str) -> None:
        """The successor of a holder at the old leader may wait for the end of its session."""
        session = 4.0
        with Partitioned() as ensemble:
            backends = [connected(ensemble.hosts, SESSION_TIMEOUT=session) for _ in range(3)]
            inside: list[Lease] = []
            overlaps: list[object] = []
            grants: list[tuple[float, int]] = []
            over = threading.Event()

            def work(number: int) -> None:
                lock = store_of(backends[number]).lock(name, timeout=WAIT_TIMEOUT)
                while not over.is_set():
                    try:
                        with lock as lease:
                            inside.append(lease)
                            others = [one for one in inside if one is not lease and not one.lost]
                            if others and not lease.lost:
                                overlaps.append(others)
                            grants.append((time.monotonic(), lease.token))
                            over.wait(0.005)
                            inside.remove(lease)
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
                assert after - failed_at < within + session + SLACK
                fault.recover()  # the old leader follows the new one
            finally:
                for backend in backends:
                    backend.close()


@pytest.mark.long
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_lease_at_the_smaller_part_ends_in_time(role: str, name: str) -> None:
    """The server replies for some ticks, while the other part already ends the session.

    This leader takes 40 ticks to notice: the others' successor is elected long before.
    """
    ensemble = Partitioned()
    second, first, last = ensemble.nodes
    last.settings[last.settings.index("syncLimit=5")] = "syncLimit=40"
    with ExitStack() as stack:
        stack.callback(ensemble.stop)
        start_all([first, last])  # the higher number wins, and the third follows
        start_all([second])
        assert leader(ensemble.nodes) is last
        cut, whole = (last, first) if role == "leader" else (first, last)
        holder = stack.enter_context(closing(connected(cut.url, SESSION_TIMEOUT=1.0)))
        other = stack.enter_context(closing(connected(whole.url)))
        lease = acquired(store_of(holder).lock(name), timeout=WAIT_TIMEOUT)
        ensemble.cut_off(cut)
        with store_of(other).lock(name, timeout=WAIT_TIMEOUT):
            granted = time.monotonic()
            assert lease.deadline <= granted
