"""The contract of every lock backend. A backend's test class names its settings:

    class TestRedis(Contract):
        path = "locking.backends.redis.RedisBackend"

        @pytest.fixture
        def location(self, redis_server): return redis_server.url

The declared `Capabilities` select the tests, and each declared property is tested. `none` is the
control, which must fail to exclude.
"""

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockMisuse, LockTimeout
from locking.backends.base import Backend, Capabilities
from tests.locking.backends.contract_base import Another, needs, served
from tests.locking.backends.contract_ends import Ends
from tests.locking.calls import acquire_and_release, in_thread, within


class CountsRequests:
    """The part for stores that count requests, with a fixture `requests` that returns the count."""

    @needs(lambda can: can.wakes_waiters)
    def test_waiter_sends_no_requests_while_it_waits(
        self, backend: Backend, name: str, requests: Callable[[], int]
    ) -> None:
        with backend.lock(name, timeout=5, ttl=60):
            before = requests()
            assert not in_thread(backend.lock(name).acquire, timeout=1.5)
            assert requests() - before <= 3, "more than to join and to leave the queue"


class Contract(Ends):
    """All tests of the contract; `contract_ends` has those of the end of a grant."""

    def test_free_lock_is_acquired_at_once(self, backend: Backend, name: str) -> None:
        lock = backend.lock(name)
        assert lock.acquire(blocking=False)
        lease = lock.lease
        assert (lease.name, lease.lost) == (name, False)
        assert str(os.getpid()) in lease.owner
        lease.check()
        lock.release()
        assert lock.lease is None

    def test_held_lock_is_refused_at_once(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:
        with backend.lock(name, timeout=5), within(WAIT_TIMEOUT):
            for _ in range(30):
                got = in_thread(acquire_and_release, backend, name, 0)
                assert got is (can.exclusion == "none")

    @needs(lambda can: can.exclusion != "none")
    def test_wait_ends_at_its_timeout(self, backend: Backend, name: str) -> None:

        def wait() -> float:
            started = time.monotonic()
            with pytest.raises(LockTimeout), backend.lock(name, timeout=0.2):
                pass
            return time.monotonic() - started

        with backend.lock(name, timeout=5):
            assert 0.2 <= in_thread(wait) < 5
            until(lambda: not self.waiting(backend, name), "the waiter leaving the queue")
        assert acquire_and_release(backend, name, 5), "an abandoned wait must not hold the lock"

    @needs(lambda can: can.exclusion != "none")
    def test_wait_without_timeout_ends_with_the_release(self, backend: Backend, name: str) -> None:
        lock = backend.lock(name, ttl=WAIT_TIMEOUT * 2)
        lock.acquire(timeout=5)
        with ThreadPoolExecutor(1) as other:
            waiter = other.submit(acquire_and_release, backend, name, math.inf)
            until(lambda: self.waiting(backend, name) != 0, "the wait")
            lock.release()
            assert waiter.result(WAIT_TIMEOUT)

    def test_inspect_lists_held_locks(
        self, backend: Backend, can: Capabilities, another: Another, name: str
    ) -> None:
        if can.exclusion == "none":
            assert not backend.inspect()
            return
        with backend.lock(name, timeout=5) as lease:
            assert backend.lock(name).locked()
            seen = {held.name: held for held in backend.inspect()}[name]
            assert seen.owner == lease.owner
            assert seen.token in (lease.token, None)
            if can.expires:
                assert 0 < seen.expires_in <= backend.ttl + 1
        assert not backend.lock(name).locked()
        assert name not in {held.name for held in backend.inspect()}
        if can.lists_holders:
            with another() as other:
                taken = other.acquire(name, timeout=5)
                assert {held.name: held.owner for held in backend.inspect()}[name] == taken["owner"]
                assert backend.lock(name).locked()

    def test_exclusion_between_processes_as_declared(
        self, can: Capabilities, another: Another, name: str, tmp_path: Path
    ) -> None:
        path, processes, times = tmp_path / "number", 3, 40
        path.write_text(f"{0:08d}")
        workers = [another() for _ in range(processes)]
        for worker in workers:
            worker.count_up(path, name, times)
        answers = [worker.receive() for worker in workers]
        assert all(answer["ok"] for answer in answers), answers
        counted = int(path.read_text())
        if can.exclusion != "machines":
            assert counted < processes * times, "the control lost no update, so there was no race"
            return
        assert counted == processes * times
        if can.fencing:
            tokens = [token for answer in answers for token in answer["tokens"]]
            assert len(set(tokens)) == len(tokens), "two grants have the same token"
            for answer in answers:
                assert answer["tokens"] == sorted(answer["tokens"])

    def test_threads_exclude_each_other(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:
        lock, inside, overlaps = backend.lock(name), [], []

        def work() -> None:
            for _ in range(10):
                lock.acquire()
                inside.append(1)
                if len(inside) > 1:
                    overlaps.append(1)
                time.sleep(0.001)  # the work that the lock is for
                inside.pop()
                lock.release()

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work) for _ in range(4)]:
                done.result(WAIT_TIMEOUT * 2)
        assert bool(overlaps) is (can.exclusion == "none")

    @pytest.mark.faults(row=24, fired="re-entry")
    def test_holder_can_enter_again(self, backend: Backend, can: Capabilities, name: str) -> None:
        assert can.reentrant
        with backend.lock(name, timeout=5) as lease:
            with backend.lock(name, timeout=5) as again:
                assert again is lease
                assert lease.count == 2
                if can.counts_in_store:
                    assert [h.count for h in backend.inspect() if h.name == name] == [2]
            assert not lease.lost
            got = in_thread(acquire_and_release, backend, name, 0)
            assert got is (can.exclusion == "none"), "the inner release freed the lock"
            if can.counts_in_store:
                assert [h.count for h in backend.inspect() if h.name == name] == [1]
        assert not backend.lock(name).locked()

    def test_tokens_grow_with_every_grant(
        self, backend: Backend, can: Capabilities, another: Another, name: str
    ) -> None:
        tokens = []
        for _ in range(20):
            with backend.lock(name, timeout=5) as lease:
                tokens.append(lease.token)
        if can.fencing:
            with another() as other:
                tokens.append(other.acquire(name, timeout=5)["token"])
                assert other.release(name)["ok"]
            with backend.lock(name, timeout=5) as lease:
                tokens.append(lease.token)
        assert tokens == sorted(set(tokens))
        assert all(0 < token < 2**63 for token in tokens)

    @needs(lambda can: can.fair)
    def test_fair_lock_is_granted_in_order(self, backend: Backend, name: str) -> None:
        order = served(backend, name, 6, lambda: self.waiting(backend, name))
        assert order == [0, 1, 2, 3, 4, 5]

    @needs(lambda can: can.fair)
    def test_waiter_keeps_its_place_beyond_its_ttl(self, backend: Backend, name: str) -> None:
        order = []

        def wait(place: int, ttl: float) -> None:
            with backend.lock(name, timeout=WAIT_TIMEOUT, ttl=ttl):
                order.append(place)

        with ThreadPoolExecutor(2) as pool:
            with backend.lock(name, timeout=5):
                waits = [pool.submit(wait, 1, self.TTL / 2)]
                until(lambda: self.waiting(backend, name) == 1, "the first waiter queueing")
                long_after = time.monotonic() + self.TTL * 1.5
                waits.append(pool.submit(wait, 2, 30))
                until(lambda: self.waiting(backend, name) == 2, "the second waiter queueing")
                until(lambda: time.monotonic() > long_after, "the ttl passing")
            for waiter in waits:
                waiter.result(WAIT_TIMEOUT)
        assert order == [1, 2]

    def test_every_waiter_gets_the_lock(self, backend: Backend, name: str) -> None:
        with ThreadPoolExecutor(12) as pool:
            waits = [pool.submit(acquire_and_release, backend, name) for _ in range(36)]
            assert all(wait.result(WAIT_TIMEOUT * 2) for wait in waits)
        assert not self.waiting(backend, name)

    @pytest.mark.faults(row=24, fired="foreign and double release")
    def test_release_without_lock_is_misuse(self, backend: Backend, name: str) -> None:
        lock = backend.lock(name)
        with pytest.raises(LockMisuse):
            lock.release()
        lock.acquire(timeout=5)
        with pytest.raises(LockMisuse):
            in_thread(lock.release)
        lock.lease.check()
        lock.release()
        with pytest.raises(LockMisuse):
            lock.release()

    @pytest.mark.parametrize("bad", ["", "x" * 300, "line\nbreak", "nul\0"])
    def test_bad_name_is_refused(self, backend: Backend, bad: str) -> None:
        with pytest.raises(LockMisuse):
            backend.lock(bad)

    def test_bad_times_are_refused(self, backend: Backend, name: str) -> None:
        for ttl in (0, -1, 1e16, math.inf, math.nan):
            with pytest.raises(LockMisuse):
                backend.lock(name, ttl=ttl)
        for timeout in (-1, math.nan):
            with pytest.raises(LockMisuse):
                backend.lock(name).acquire(timeout=timeout)
        with pytest.raises(LockMisuse):
            backend.lock(name).acquire(blocking=False, timeout=1)
        assert name not in {held.name for held in backend.inspect()}

    @needs(lambda can: can.exclusion != "none")
    def test_names_are_not_patterns(self, backend: Backend, name: str) -> None:
        odd = [name.upper(), f"{name} ", f"{name}/../%2F", f"{name}{{*}}?[x]", f"{name}é限"]
        with backend.lock(name.lower(), timeout=5):
            for other in odd:
                assert acquire_and_release(backend, other, 0), other
        with backend.lock(odd[-1], timeout=5):
            assert odd[-1] in {held.name for held in backend.inspect()}
