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

from locking.claims import READER, WRITER, Claim
from locking.exceptions import LockLost, LockMisuse
from locking.lease import LockStore
from locking.testing.calls import (
    WAIT_TIMEOUT,
    acquire_and_release,
    in_thread,
    until,
    within,
)
from locking.testing.contract_base import Another, claim_on, each_lock, granted, needs
from locking.testing.contract_ends import Ends
from locking.testing.contract_faults import Faults

shared = needs(lambda can: can.shared)


class Contract(Ends, Faults):
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

    def passes(self, locks: LockStore, name: str, slots: int, timeout: float = 0) -> bool:
        """Return whether another caller gets the lock, which it releases."""
        claim = claim_on(locks, name, slots)
        grant = locks.backend.acquire(claim, timeout)
        if grant is not None:
            locks.backend.release(claim, grant.token)
        return grant is not None

    @shared
    def test_semaphore_has_as_many_holders_as_slots(self, locks: LockStore, name: str) -> None:
        claims = [claim_on(locks, name, 2) for _ in range(2)]
        grants = {claim.owner: granted(locks, claim).token for claim in claims}
        assert not self.passes(locks, name, 2)
        seen = locks.backend.holders(claims[0].name)
        assert {held.owner: held.token for held in seen} == grants
        locks.backend.release(claims[0], grants[claims[0].owner])
        assert self.passes(locks, name, 2)
        locks.backend.release(claims[1], grants[claims[1].owner])

    @shared
    def test_readers_share_and_a_writer_excludes(self, locks: LockStore, name: str) -> None:
        with locks.read_write(name).read(timeout=5):
            assert self.passes(locks, name, READER)
            assert not self.passes(locks, name, WRITER)
        with locks.read_write(name).write(timeout=5):
            assert not self.passes(locks, name, READER)
            assert not self.passes(locks, name, WRITER)

    @needs(lambda can: can.shared and can.expires)
    def test_expired_holder_frees_its_slot_only(self, locks: LockStore, name: str) -> None:
        old, kept, new = (claim_on(locks, name, 2, ttl=ttl) for ttl in (0.3, 5, 30))
        first, second = granted(locks, old), granted(locks, kept)
        locks.backend.extend(kept, second.token, 30)
        third = granted(locks, new)
        assert third.token > first.token
        with pytest.raises(LockLost):
            locks.backend.extend(old, first.token, 30)
        with pytest.raises(LockLost):
            locks.backend.release(old, first.token)
        assert not self.passes(locks, name, 2), "the extended slot was granted again"
        locks.backend.release(kept, second.token)
        locks.backend.release(new, third.token)

    @shared
    @pytest.mark.parametrize("kinds", [[1] * 5, [WRITER, READER, WRITER]])
    def test_slot_is_granted_in_order(self, locks: LockStore, name: str, kinds: list[int]) -> None:
        assert self.served(locks, name, kinds) == [*range(len(kinds))]

    @shared
    def test_waiting_writer_goes_before_later_readers(self, locks: LockStore, name: str) -> None:
        with ThreadPoolExecutor(2) as pool, locks.read_write(name).read(timeout=5):
            order = self.queue(locks, name, [WRITER, READER], pool)
            assert not self.passes(locks, name, READER)
            assert not order, "a reader overtook a writer"
        assert order == [0, 1]

    @shared
    @pytest.mark.parametrize("how", ["cancelled", "timed out"])
    def test_writer_that_gives_up_lets_readers_in(
        self, locks: LockStore, name: str, how: str
    ) -> None:
        writer = claim_on(locks, name, WRITER)
        timeout = WAIT_TIMEOUT * 2 if how == "cancelled" else 3.0
        with ThreadPoolExecutor(2) as pool, locks.read_write(name).read(timeout=5):
            waiting = pool.submit(locks.backend.acquire, writer, timeout)
            until(lambda: self.waiting(locks, writer.name) == 1, "the writer waiting")
            reader = pool.submit(self.passes, locks, name, READER, WAIT_TIMEOUT)
            until(lambda: self.waiting(locks, writer.name) == 2, "the reader waiting")
            if how == "cancelled":
                writer.cancel()
            assert waiting.result(WAIT_TIMEOUT) is None
            assert reader.result(WAIT_TIMEOUT)
            until(lambda: not self.waiting(locks, writer.name), "the queue being empty")

    @needs(lambda can: can.shared and can.lists_holders)
    def test_other_number_of_slots_is_refused(self, locks: LockStore, name: str) -> None:
        with locks.semaphore(name, 2, timeout=5) as lease:
            with pytest.raises(LockMisuse, match="slots=2"):
                in_thread(locks.semaphore(name, 3).acquire, timeout=0)
            lease.check()
        assert self.passes(locks, name, 3, 5)
