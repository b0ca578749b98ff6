"""The contract of the end of a grant or a wait."""

import asyncio
import math
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext

import pytest

from locking.claims import READER, WRITER, Claim
from locking.exceptions import LockLost, LockMisuse, LockUnavailable
from locking.handler import create
from locking.lease import LockStore
from locking.testing.calls import (
    WAIT_TIMEOUT,
    acquire_and_release,
    in_thread,
    lock_for,
    passes_in_child,
    until,
    within,
)
from locking.testing.contract_base import (
    Another,
    ContractBase,
    claim_on,
    each_lock,
    granted,
    needs,
)


class Ends(ContractBase):
    """A grant or a wait that ends leaves nothing behind, and its successor alone."""

    @needs(lambda can: can.exclusion == "machines")
    @each_lock(None, 1, WRITER)
    def test_killed_holder_is_replaced(
        self, locks: LockStore, another: Another, name: str, slots: int | None
    ) -> None:
        can = locks.capabilities
        assert can.expires or can.session_bound
        other = another()
        assert other.call("acquire", name, 5, self.TTL, slots)
        other.kill()
        assert acquire_and_release(locks, name, slots=slots)

    @needs(lambda can: can.exclusion == "machines")
    def test_killed_waiter_is_skipped(self, locks: LockStore, another: Another, name: str) -> None:
        other = another()
        with locks.lock(name, timeout=5):
            other.send("acquire", name, 60, self.TTL)
            until(lambda: self.waiting(locks, name) in (1, None), "the other one queueing")
            other.kill()
        assert acquire_and_release(locks, name)

    @needs(lambda can: can.expires and can.exclusion == "machines")
    def test_stopped_waiter_is_skipped(self, locks: LockStore, another: Another, name: str) -> None:
        """Its grant ends unused, and it waits again for one of its own."""
        other = another()
        try:
            with locks.lock(name, timeout=5):
                other.send("acquire", name, 60, self.TTL)
                until(lambda: self.waiting(locks, name) in (1, None), "the other one queueing")
                other.pause()
            with locks.lock(name, timeout=WAIT_TIMEOUT) as lease:
                other.resume()
                until(lambda: self.waiting(locks, name) != 0, "the other one queueing again")
                lease.check()
        finally:
            other.resume()
        _, token = other.receive()
        assert token > lease.token or not locks.capabilities.fencing
        assert other.call("release", name) == ""

    @needs(lambda can: can.exclusion == "machines")
    def test_stopped_holder_keeps_its_lock_or_learns_of_the_loss(
        self, locks: LockStore, another: Another, name: str
    ) -> None:
        first, second = another(), locks.lock(name, ttl=30)
        _, token = first.call("acquire", name, 5, self.TTL)
        first.pause()
        is_granted = second.acquire(timeout=WAIT_TIMEOUT if locks.capabilities.expires else 4)
        first.resume()
        assert first.call("is_lost", name) is is_granted
        assert first.call("release", name) == ("LockLost" if is_granted else "")
        if is_granted:
            assert second.lease is not None
            second.lease.check()
            assert not locks.capabilities.fencing or second.lease.token > token
            assert not in_thread(locks.lock(name).acquire, blocking=False), "the late release"
            second.release()
        else:
            assert not locks.capabilities.expires

    @needs(lambda can: can.expires)
    def test_expired_claim_cannot_change_its_successor(self, locks: LockStore, name: str) -> None:
        old, successor = Claim(name=name, ttl=0.3), Claim(name=name, ttl=30)
        expired, grant = granted(locks, old), granted(locks, successor)
        assert grant.token > expired.token
        with pytest.raises(LockLost):
            locks.backend.extend(old, expired.token, 30)
        with pytest.raises(LockLost):
            locks.backend.release(old, expired.token)
        assert locks.backend.acquire(Claim(name=name, ttl=30), 0) is None, (
            "the successor lost its lock"
        )
        locks.backend.release(successor, grant.token)

    @needs(lambda can: can.expires and can.fair)
    def test_newcomer_does_not_overtake_a_waiter_when_the_grant_expires(
        self, locks: LockStore, name: str
    ) -> None:
        granted(locks, Claim(name=name, ttl=self.TTL))
        patient = Claim(name=name, ttl=30)
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(granted, locks, patient)
            until(lambda: self.waiting(locks, name) == 1 or waiter.done(), "the wait")
            while not waiter.done():
                assert locks.backend.acquire(Claim(name=name, ttl=30), 0) is None, "it overtook"
        locks.backend.release(patient, waiter.result().token)

    @needs(lambda can: can.expires)
    def test_extended_grant_lasts_longer(self, locks: LockStore, name: str) -> None:
        claim = Claim(name=name, ttl=30)
        grant = granted(locks, claim)
        assert grant.deadline <= time.monotonic() + 30
        extended = locks.backend.extend(claim, grant.token, 600)
        assert grant.deadline + 400 < extended <= time.monotonic() + 600
        (seen,) = locks.backend.holders(name)
        assert 400 < (seen.expires_in or 0) <= 601
        locks.backend.release(claim, grant.token)

    @needs(lambda can: can.exclusion != "none")
    @each_lock(None, 1, READER, WRITER)
    def test_other_claims_cannot_change_the_grant(
        self, locks: LockStore, name: str, slots: int | None
    ) -> None:
        holder, other = (claim_on(locks, name, slots) for _ in range(2))
        grant = granted(locks, holder)
        if locks.capabilities.counts_in_store:
            locks.backend.set_depth(holder, grant.token, 3)
            assert self.held(locks, holder.name) == [(holder.owner, 3)]
        before = self.held(locks, holder.name)
        with pytest.raises(LockLost):
            locks.backend.extend(other, grant.token, 60)
        with pytest.raises(LockLost) if locks.capabilities.counts_in_store else nullcontext():
            locks.backend.set_depth(other, grant.token, 2)
        with pytest.raises(LockLost):
            locks.backend.release(other, grant.token)
        assert self.held(locks, holder.name) == before
        locks.backend.release(holder, grant.token)
        with pytest.raises(LockLost):
            locks.backend.release(holder, grant.token)

    @needs(lambda can: can.hands_over)
    def test_handed_over_lease_has_one_holder(self, locks: LockStore, name: str) -> None:
        giver, taker, late, patient = (Claim(name=name, ttl=30) for _ in range(4))
        token, take_over = granted(locks, giver).token, locks.backend.take_over
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(granted, locks, patient)
            until(lambda: self.waiting(locks, name) != 0, "the wait")
            with pytest.raises(LockLost):
                take_over(taker, giver.owner, token)  # it was not handed over
            locks.backend.set_depth(giver, token, 0)
            assert locks.backend.acquire(late, 0) is None, "it is free meanwhile"
            with pytest.raises(LockLost):
                take_over(taker, giver.owner, token - (1 << 30))  # of an earlier grant
            grant = take_over(taker, giver.owner, token)
            assert grant.token > token, "a late write of the giver would not be refused"
            taker.ttl = 60  # again, after a lost reply
            again = take_over(taker, giver.owner, token)
            assert again.token == grant.token
            for call in (
                lambda: locks.backend.extend(giver, token, 0.1),
                lambda: locks.backend.release(giver, token),
                lambda: take_over(late, giver.owner, token),
            ):
                with pytest.raises(LockLost):
                    call()
            (seen,) = locks.backend.holders(name)
            assert (seen.owner, seen.count) == (taker.owner, 1)
            assert again.deadline < time.monotonic() + (seen.expires_in or 0) + 1
            assert seen.waiters in (1, None), "the waiter lost its place"
            locks.backend.release(taker, grant.token)
        locks.backend.release(patient, waiter.result().token)

    @needs(lambda can: can.exclusion != "none")
    @pytest.mark.parametrize("when", ["before", "during"])
    def test_cancelled_wait_leaves_no_trace(self, locks: LockStore, name: str, when: str) -> None:
        claim = Claim(name=name, ttl=30)
        with locks.lock(name, timeout=5), ThreadPoolExecutor(1) as pool:
            if when == "before":
                claim.cancel()
            waiter = pool.submit(locks.backend.acquire, claim, WAIT_TIMEOUT * 2)
            if when == "during":
                until(lambda: self.waiting(locks, name) != 0, "the wait")
                claim.cancel()
            assert waiter.result(WAIT_TIMEOUT) is None
            until(lambda: not self.waiting(locks, name), "the waiter leaving the queue")
        assert acquire_and_release(locks, name, 5)

    @needs(lambda can: can.exclusion != "none")
    @each_lock(None, WRITER)
    def test_cancelled_task_leaves_no_trace(
        self, locks: LockStore, name: str, slots: int | None
    ) -> None:
        lock = lock_for(locks, name, slots, timeout=WAIT_TIMEOUT)

        async def enter() -> None:
            async with lock:
                pass

        async def main() -> None:
            async with lock:
                waiter = asyncio.create_task(enter())
                while self.waiting(locks, lock.name) == 0:
                    await asyncio.sleep(0.005)
                waiter.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(waiter, WAIT_TIMEOUT)
                until(lambda: not self.waiting(locks, lock.name), "the waiter leaving the queue")
            await asyncio.wait_for(asyncio.create_task(enter()), WAIT_TIMEOUT)

        asyncio.run(main())

    @needs(lambda can: can.exclusion != "none")
    def test_task_that_waits_gives_up_or_gets_the_lock(self, locks: LockStore, name: str) -> None:
        lock = locks.lock(name, ttl=WAIT_TIMEOUT * 2)

        async def wait(seconds: float) -> bool:
            if is_granted := await lock.aacquire(timeout=seconds):
                await lock.arelease()
            return is_granted

        async def main() -> None:
            async with asyncio.timeout(WAIT_TIMEOUT), lock:
                assert not await asyncio.create_task(wait(0))
                assert not await asyncio.create_task(wait(0.2))
                waiter = asyncio.create_task(wait(math.inf))
                while self.waiting(locks, name) == 0:
                    await asyncio.sleep(0.005)
            assert await asyncio.wait_for(waiter, WAIT_TIMEOUT)

        asyncio.run(main())

    @needs(lambda can: can.exclusion != "none")
    def test_interrupted_wait_leaves_no_trace(self, locks: LockStore, name: str) -> None:
        """A signal handler raises during the wait, as for Ctrl-C and Celery's time limits."""

        def interrupt(*args: object) -> None:
            raise KeyboardInterrupt

        lock, previous = locks.lock(name), signal.signal(signal.SIGALRM, interrupt)
        try:
            with ThreadPoolExecutor(1) as other:
                assert other.submit(lock.acquire).result(WAIT_TIMEOUT)
                with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - not outside of it
                    signal.setitimer(signal.ITIMER_REAL, 0.3)
                    locks.lock(name).acquire(timeout=WAIT_TIMEOUT)
                until(lambda: not self.waiting(locks, name), "the waiter leaving the queue")
                other.submit(lock.release).result(WAIT_TIMEOUT)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        assert acquire_and_release(locks, name, 5)

    @needs(lambda can: can.exclusion != "none")
    def test_release_wakes_the_waiter_also_after_a_fork(self, locks: LockStore, name: str) -> None:
        """The connection of the waiting thread is in use at the moment of the fork."""
        lock = locks.lock(name, ttl=WAIT_TIMEOUT * 2)
        free = f"{name}-free"

        def works_in_child() -> bool:
            excluded = locks.capabilities.exclusion != "machines" or not lock.acquire(timeout=0.1)
            return lock.lease is None and excluded and acquire_and_release(locks, free, 5)

        assert lock.acquire(timeout=5)
        with ThreadPoolExecutor(1) as other:
            waiter = other.submit(acquire_and_release, locks, name, math.inf)
            try:
                until(lambda: self.waiting(locks, name) != 0, "the wait")
                if locks.capabilities.exclusion == "machines":
                    assert passes_in_child(works_in_child)
                    assert acquire_and_release(locks, free, 5)
            finally:  # else the waiter would wait for ever
                lock.release()
            assert waiter.result(WAIT_TIMEOUT)

    def test_lock_works_after_a_fork(self, locks: LockStore, name: str) -> None:
        with locks.lock(name, timeout=5) as lease:  # opens the client, too
            assert passes_in_child(lambda: acquire_and_release(locks, f"{name}-free", 5))
            lease.check()

    @needs(lambda can: can.exclusion == "machines")
    def test_closed_store_tells_its_holders_what_they_lost(
        self, locks: LockStore, another: Another, name: str
    ) -> None:
        lock, other = locks.lock(name, ttl=WAIT_TIMEOUT), another()
        lock.acquire(timeout=5)
        lease = lock.lease
        locks.close()
        assert lease is not None
        if other.call("acquire", name, 1, None):
            until(lambda: lease.lost, "the loss being known")
            other.call("release", name)
        else:
            lease.check()
            lock.release()
        assert in_thread(acquire_and_release, locks, name, 5), "its use opens it again"

    @needs(lambda can: can.exclusion == "machines")
    def test_unreachable_store_fails_in_bounded_time(self) -> None:
        locks = create("down", {"BACKEND": self.path, "LOCATION": self.down})
        with within(WAIT_TIMEOUT), closing(locks):
            with pytest.raises(LockUnavailable):
                locks.probe()
            with pytest.raises(LockUnavailable):
                locks.lock("contract:down").acquire(timeout=0.5)

    @needs(lambda can: can.exclusion != "none")
    def test_broken_lock_is_lost_by_its_holder(self, locks: LockStore, name: str) -> None:
        lost = threading.Event()
        lock = locks.lock(name, ttl=2 * WAIT_TIMEOUT, on_lost=lambda lease: lost.set())
        lock.acquire(timeout=5)
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(acquire_and_release, locks, name, 2 * WAIT_TIMEOUT)
            until(lambda: self.waiting(locks, name) != 0, "the wait")
            try:
                assert locks.break_lock(name)
            except LockMisuse:  # the backend has no such operation
                lock.release()
                return
            assert not locks.break_lock(f"{name}-unknown")
            assert waiter.result(WAIT_TIMEOUT), "a broken lock must be free for others"
        if locks.capabilities.session_bound:
            assert lost.wait(WAIT_TIMEOUT), "on_lost was not called"
        with pytest.raises(LockLost):
            lock.release()
