"""The contract of every lock store.

    from locking.testing.contract import Contract

    class TestMyBackend(Contract):
        path = "project.locks.MyBackend"
        down = "tcp://127.0.0.1:1"      # nothing listens there

        @pytest.fixture
        def location(self): return "tcp://127.0.0.1:4711"

A test class names the backend and its store. The declared `Capabilities` select the tests. Faults
of the store need a `StoreDriver`; without it, some capabilities are declared but not proved.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from locking.claims import WRITER, Claim
from locking.lease import LockStore
from locking.testing.calls import (
    WAIT_TIMEOUT,
    acquire_and_release,
    in_thread,
    until,
    within,
)
from locking.testing.contract_base import Another, each_lock, needs
from locking.testing.contract_ends import Ends
from locking.testing.contract_faults import Faults
from locking.testing.contract_shared import Shared


class Contract(Ends, Shared, Faults):
    """All tests of the contract."""

    def test_held_lock_is_refused_at_once(self, locks: LockStore, name: str) -> None:
        with locks.lock(name, timeout=5), within(WAIT_TIMEOUT):
            for _ in range(30):
                got = in_thread(acquire_and_release, locks, name, 0)
                assert got is (locks.capabilities.exclusion == "none")

    @needs(lambda can: can.exclusion != "none")
    def test_wait_ends_at_its_timeout(self, locks: LockStore, name: str) -> None:
        with locks.lock(name, timeout=5):
            started = time.monotonic()
            assert locks.backend.acquire(Claim(name=name, ttl=30), 0.2) is None
            assert 0.2 <= time.monotonic() - started < 5
            until(lambda: not self.waiting(locks, name), "the waiter leaving the queue")
        assert acquire_and_release(locks, name, 0), "an abandoned wait must not hold the lock"

    @needs(lambda can: can.exclusion != "none")
    def test_inspect_lists_held_locks(self, locks: LockStore, another: Another, name: str) -> None:
        with locks.lock(name, timeout=5) as lease:
            assert locks.lock(name).locked()
            seen = {held.name: held for held in locks.inspect()}[name]
            assert seen.owner == lease.owner
            assert seen.token in (lease.token, None)
            ends_in = (seen.expires_in or 0) / locks.ttl
            assert not locks.capabilities.expires or 0.2 < ends_in <= 1.2
        assert not locks.lock(name).locked()
        assert name not in {held.name for held in locks.inspect()}
        if locks.capabilities.lists_holders and locks.capabilities.exclusion == "machines":
            other = another()
            owner, _ = other.call("acquire", name, 5, None)
            assert {held.name: held.owner for held in locks.inspect()}[name] == owner
            assert locks.lock(name).locked()
            other.call("release", name)

    @each_lock(None, 1, WRITER)
    def test_exclusion_between_processes_as_declared(
        self, locks: LockStore, another: Another, name: str, tmp_path: Path, slots: int | None
    ) -> None:
        """Processes count in a file under the lock; no number is lost if it excludes them."""
        path, workers, times = tmp_path / "number", [another() for _ in range(3)], 40
        tokens: list[list[int]] = []
        path.write_text(f"{0:08d}")
        for worker in workers:
            assert worker.call("count", path, name, 0, slots) == [], "all have started"

        def loses_updates() -> bool:
            path.write_text(f"{0:08d}")
            for worker in workers:
                worker.send("count", path, name, times, slots)
            tokens[:] = [worker.receive() for worker in workers]
            return int(path.read_text()) < 3 * times

        if locks.capabilities.exclusion != "machines":
            until(loses_updates, "a race in the control")
            return
        assert not loses_updates()
        if locks.capabilities.fencing:
            assert len(set().union(*tokens)) == 3 * times, "two grants have the same token"
            assert tokens == [sorted(some) for some in tokens]

    def test_tokens_grow_with_every_grant(
        self, locks: LockStore, another: Another, name: str
    ) -> None:
        tokens = []
        for number in range(20):
            can = locks.capabilities
            if number == 15 and can.fencing and can.exclusion == "machines":
                other = another()
                tokens.append(other.call("acquire", name, 5, None)[1])
                other.call("release", name)
            with locks.lock(name, timeout=5) as lease:
                tokens.append(lease.token)
        assert tokens == sorted(set(tokens))
        assert all(0 < token < 2**63 for token in tokens)

    @needs(lambda can: can.fair)
    @pytest.mark.parametrize("number", [8, 64])
    def test_fair_lock_is_granted_in_order(self, locks: LockStore, name: str, number: int) -> None:
        assert self.served(locks, name, [None] * number) == [*range(number)]

    @needs(lambda can: can.fair and can.expires)
    def test_waiter_keeps_its_place_beyond_its_ttl(self, locks: LockStore, name: str) -> None:
        order: list[int] = []

        def wait(place: int, ttl: float) -> None:
            with locks.lock(name, timeout=WAIT_TIMEOUT, ttl=ttl):
                order.append(place)

        with ThreadPoolExecutor(2) as pool, locks.lock(name, timeout=5):
            for place, ttl in enumerate([self.TTL / 2, 30]):
                pool.submit(wait, place, ttl)
                until(
                    partial(lambda size: self.waiting(locks, name) == size, place + 1), "queueing"
                )
            long_after = time.monotonic() + self.TTL * 1.5
            until(lambda: time.monotonic() > long_after, "the ttl passing")
        assert order == [0, 1]

    def test_every_waiter_gets_the_lock_alone(self, locks: LockStore, name: str) -> None:
        inside: list[int] = []
        overlaps: list[int] = []

        def work() -> None:
            with locks.lock(name, timeout=WAIT_TIMEOUT):
                inside.append(1)
                overlaps.extend(inside[1:])
                time.sleep(0.001)  # the work that the lock is for
                inside.pop()

        with ThreadPoolExecutor(12) as pool:
            for waiter in [pool.submit(work) for _ in range(36)]:
                waiter.result(WAIT_TIMEOUT * 2)
        assert bool(overlaps) is (locks.capabilities.exclusion == "none")
        assert not self.waiting(locks, name)

    @needs(lambda can: can.exclusion != "none")
    def test_names_are_not_patterns(self, locks: LockStore, name: str) -> None:
        odd = [name.upper(), f"{name} ", f"{name}/../%2F", f"{name}{{*}}?[x]", f"{name}é限"]
        with locks.lock(name.lower(), timeout=5):
            for other in odd:
                assert acquire_and_release(locks, other, 0), other
        with locks.lock(odd[-1], timeout=5):
            assert odd[-1] in {held.name for held in locks.inspect()}
