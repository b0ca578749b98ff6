"""The contract under faults of the store, as far as the author of a backend can cause them."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress

import pytest

from locking.claims import WRITER, Claim, Grant
from locking.exceptions import LockError, LockLost, LockUnavailable
from locking.lease import LockStore
from locking.testing.calls import (
    WAIT_TIMEOUT,
    acquire_and_release,
    in_thread,
    lock_for,
    until,
    until_available,
    within,
)
from locking.testing.contract_base import (
    ContractBase,
    Open,
    claim_on,
    each_lock,
    granted,
    needs,
)
from locking.testing.driver import StoreDriver

LONG = 3 * WAIT_TIMEOUT
"""Seconds of a lease that does not end during a test."""


class Faults(ContractBase):
    """Each test needs a hook of the `StoreDriver`."""

    @needs(lambda can: can.wakes_waiters, "requests")
    def test_waiter_sends_no_requests_while_it_waits(
        self, driver: StoreDriver, open_store: Open, name: str
    ) -> None:
        """A longer wait sends no more requests than a short one."""
        locks, sent = open_store(), list[int]()
        with locks.lock(name, ttl=LONG, timeout=5):
            for seconds in (0.05, 0.7, 2.2):  # the first one opens connections
                before = driver.requests()
                assert not in_thread(locks.lock(name).acquire, timeout=seconds)
                sent.append(driver.requests() - before)
        assert sent[2] <= sent[1] + 3, f"it polls: {sent}"

    @needs(lambda can: can.exclusion != "none", "pause")
    def test_stopped_store_fails_in_bounded_time(
        self, driver: StoreDriver, open_store: Open, name: str
    ) -> None:
        locks, claim = open_store(), Claim(name=name, ttl=LONG)
        grant = granted(locks, claim)
        driver.pause()
        with within(WAIT_TIMEOUT):
            with pytest.raises(LockUnavailable):
                locks.probe()
            with pytest.raises(LockUnavailable):
                locks.backend.acquire(Claim(name=f"{name}-other", ttl=30), 0.5)
            for call in (
                lambda: locks.backend.extend(claim, grant.token, LONG),
                lambda: locks.backend.release(claim, grant.token),
            ):
                with pytest.raises((LockUnavailable, LockLost)):
                    call()
        driver.recover()
        until_available(locks.probe)
        assert acquire_and_release(open_store(), f"{name}-other")

    @needs(lambda can: can.fencing, "restart")
    @each_lock(None, 1, WRITER)
    def test_tokens_grow_through_a_restart(
        self, driver: StoreDriver, open_store: Open, name: str, slots: int | None
    ) -> None:
        """The clock of the restarted store is a minute behind, if the driver can set it."""
        locks = open_store()
        claim = claim_on(locks, name, slots, ttl=3 * self.TTL)
        grant = granted(locks, claim)
        if self.Driver.has("shift_clock"):
            driver.shift_clock(-60)
        self.follow(locks, claim, grant, open_store, knows=driver.restart())

    @needs(lambda can: can.tokens_outlive_failover, "promote_replica")
    def test_tokens_grow_through_a_failover(
        self, driver: StoreDriver, open_store: Open, name: str
    ) -> None:
        locks, claim = open_store(), Claim(name=name, ttl=3 * self.TTL)
        assert acquire_and_release(locks, name)
        driver.cut_replication()
        grant = granted(locks, claim)
        self.follow(locks, claim, grant, open_store, knows=driver.promote_replica())

    def follow(
        self, old: LockStore, claim: Claim, grant: Grant, open_store: Open, *, knows: bool
    ) -> None:
        """Check the next grant after a fault; the store `knows` the lock, or lost it."""
        expires, token, new = old.capabilities.expires, grant.token, open_store()
        if knows and not expires:
            with suppress(LockError):
                old.backend.release(claim, token)

        def acquire(timeout: float) -> tuple[Claim, Grant | None]:
            # By a new claim: the release of one whose reply was lost may be repeated later.
            asked = Claim(name=claim.name, ttl=LONG)
            asked.slots = claim.slots
            return asked, new.backend.acquire(asked, timeout)

        next_claim, later = until_available(lambda: acquire(WAIT_TIMEOUT))
        assert later is not None
        assert later.token > token, "a stale holder cannot be told from the next one"
        assert not (knows and expires) or time.monotonic() > grant.deadline - 0.1, (
            "the lock was forgotten"
        )
        with pytest.raises(LockError):
            old.backend.release(claim, token)
        assert acquire(0)[1] is None
        new.backend.release(next_claim, later.token)

    @needs(lambda can: can.survives_minority, "stop_minority")
    def test_minority_that_is_down_stops_no_lock(
        self, driver: StoreDriver, open_store: Open, name: str
    ) -> None:
        locks = open_store()
        assert acquire_and_release(locks, name)
        until(lambda: not locks.backend.nodes_down(), "all nodes serving")
        driver.stop_minority()
        assert locks.backend.nodes_down(), "operators must learn of it"
        for store in (locks, open_store()):
            with store.lock(name, ttl=LONG, timeout=WAIT_TIMEOUT) as lease:
                assert not in_thread(open_store().lock(name).acquire, timeout=0.2)
                lease.extend(LONG)

    @needs(lambda can: can.expires, "shift_clock")
    def test_clock_set_back_does_not_prolong_a_lease(
        self, driver: StoreDriver, open_store: Open, name: str
    ) -> None:
        locks = open_store()
        first = granted(locks, Claim(name=name, ttl=self.TTL))
        driver.shift_clock(-3600)
        assert granted(locks, Claim(name=name, ttl=30)).token > first.token

    @needs(lambda can: can.session_bound, "shift_clock")
    def test_clock_set_ahead_ends_no_session(
        self, driver: StoreDriver, open_store: Open, name: str
    ) -> None:
        with open_store().lock(name, timeout=5) as lease:
            driver.shift_clock(3600)
            assert not in_thread(open_store().lock(name).acquire, timeout=3 * self.TTL)
            lease.check()

    @needs(lambda can: can.exclusion == "machines", "lose_reply")
    def test_lost_replies_are_resolved_by_the_owner(
        self, driver: StoreDriver, open_store: Open, name: str
    ) -> None:
        """A grant that ended with its session is repeated in a new one."""
        can, far, near = self.capabilities, open_store(far=True), open_store()
        assert acquire_and_release(far, name)
        claim = Claim(name=name, ttl=30)
        driver.lose_reply()
        grant = granted(far, claim)
        assert near.backend.acquire(Claim(name=name, ttl=30), 0) is None
        if can.lists_holders:
            assert [owner for owner, _ in self.held(near, name)] == [claim.owner]
        if can.expires:
            far.probe()  # on an open connection
            driver.lose_reply()
            assert far.backend.extend(claim, grant.token, 60) > grant.deadline + 20
        if can.counts_in_store:
            far.probe()
            driver.lose_reply()
            far.backend.set_depth(claim, grant.token, 2)
            assert self.held(near, name) == [(claim.owner, 2)]
        far.probe()
        driver.lose_reply()
        with suppress(LockLost) if can.session_bound else nullcontext():
            far.backend.release(claim, grant.token)
        assert acquire_and_release(near, name)

    @needs(lambda can: can.exclusion == "machines", "hold")
    def test_acquisition_that_arrives_late_is_harmless(
        self, driver: StoreDriver, open_store: Open, name: str
    ) -> None:
        far, ttl = open_store(far=True), LONG if "withdrawal" in self.repeats else self.TTL
        assert acquire_and_release(far, name)
        driver.hold()
        with within(WAIT_TIMEOUT), pytest.raises(LockUnavailable):
            far.backend.acquire(Claim(name=name, ttl=ttl), 0)
        driver.recover()
        assert acquire_and_release(open_store(), name)

    @needs(lambda can: can.exclusion == "machines", "cut")
    def test_release_without_a_connection_frees_the_lock(
        self, driver: StoreDriver, open_store: Open, name: str
    ) -> None:
        """The release is repeated, or the grant ends."""
        ttl = LONG if "release" in self.repeats else 3 * self.TTL
        far, claim = open_store(far=True), Claim(name=name, ttl=ttl)
        grant = granted(far, claim)
        driver.cut(refuse=True)
        with pytest.raises((LockUnavailable, LockLost)):
            far.backend.release(claim, grant.token)
        driver.recover()
        assert acquire_and_release(open_store(), name)

    @needs(lambda can: can.exclusion == "machines" and can.wakes_waiters, "cut")
    def test_waiter_survives_a_lost_connection(
        self, driver: StoreDriver, open_store: Open, name: str
    ) -> None:
        near, far = open_store(), open_store(far=True)
        lock = near.lock(name, ttl=LONG, timeout=5)
        with ThreadPoolExecutor(1) as pool:
            with lock:
                waiter = pool.submit(acquire_and_release, far, name)
                until(lambda: self.waiting(near, name) != 0, "the wait")
                driver.cut(refuse=False)
            assert waiter.result(WAIT_TIMEOUT)
        until(lambda: not self.waiting(near, name), "the waiter leaving the queue")

    @needs(lambda can: can.session_bound, "end_session")
    @each_lock(None, 1, WRITER)
    def test_end_of_the_session_is_the_loss_of_the_lock(
        self, driver: StoreDriver, open_store: Open, name: str, slots: int | None
    ) -> None:
        """The holder learns of it, and the next one has a lock of its own."""
        locks, other, lost = open_store(), open_store(), threading.Event()
        lock = lock_for(locks, name, slots, on_lost=lambda lease: lost.set())
        assert lock.acquire(timeout=5)
        lease, successor = lock.lease, lock_for(other, name, slots)
        assert lease is not None
        with ThreadPoolExecutor(1) as pool:
            assert not pool.submit(successor.acquire, timeout=0).result(WAIT_TIMEOUT)
            driver.end_session(locks, lease)
            assert pool.submit(successor.acquire, timeout=WAIT_TIMEOUT).result(2 * WAIT_TIMEOUT)
            assert lost.wait(WAIT_TIMEOUT), "on_lost was not called"
            for call in (lease.check, lock.release):
                with pytest.raises(LockLost):
                    call()
            taken = pool.submit(lambda: successor.lease).result(WAIT_TIMEOUT)
            assert taken is not None
            assert not self.capabilities.fencing or taken.token > lease.token
            taken.check()
            pool.submit(successor.release).result(WAIT_TIMEOUT)
