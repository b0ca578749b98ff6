"""Ends of a grant and of a wait that concern leases rather than a backend, and rows of faults."""

import asyncio
import math
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost
from locking.lease import LockStore
from locking.testing import contract
from locking.testing.calls import acquire_and_release, in_thread, passes_in_child
from locking.testing.contract_base import Another, needs
from tests.locking.backends.contract_processes import OtherProcesses


class Ends(contract.Contract, OtherProcesses):
    """The part about the end of a grant or a wait."""

    @needs(lambda can: can.exclusion == "machines")
    def test_killed_waiter_is_skipped(self, locks: LockStore, another: Another, name: str) -> None:
        other = another()
        with locks.lock(name, timeout=5):
            other.send("acquire", name, 60, self.TTL)
            if self.waiting(locks, name) is not None:
                until(lambda: self.waiting(locks, name) == 1, "the other one queueing")
            other.kill()
        assert acquire_and_release(locks, name)

    @needs(lambda can: can.exclusion != "none")
    def test_wait_without_timeout_ends_with_the_release(self, locks: LockStore, name: str) -> None:
        lock = locks.lock(name, ttl=WAIT_TIMEOUT * 2)
        lock.acquire(timeout=5)
        with ThreadPoolExecutor(1) as other:
            waiter = other.submit(acquire_and_release, locks, name, math.inf)
            until(lambda: self.waiting(locks, name) != 0, "the wait")
            lock.release()
            assert waiter.result(WAIT_TIMEOUT)

    @needs(lambda can: can.exclusion == "machines")
    def test_fork_leaves_a_wait_of_the_parent_alone(self, locks: LockStore, name: str) -> None:
        """The connection of the waiting thread is in use at that moment."""
        lock = locks.lock(name, ttl=WAIT_TIMEOUT * 2)
        lock.acquire(timeout=5)
        with ThreadPoolExecutor(1) as other:
            waiter = other.submit(acquire_and_release, locks, name, WAIT_TIMEOUT)
            until(lambda: self.waiting(locks, name) != 0, "the wait")
            free = f"{name}-free"
            assert passes_in_child(lambda: acquire_and_release(locks, free, 5))
            assert acquire_and_release(locks, free, 5)
            lock.release()
            assert waiter.result(WAIT_TIMEOUT)

    @needs(lambda can: can.fair)
    def test_waiter_keeps_its_place_beyond_its_ttl(self, locks: LockStore, name: str) -> None:
        order = []

        def wait(place: int, ttl: float) -> None:
            with locks.lock(name, timeout=WAIT_TIMEOUT, ttl=ttl):
                order.append(place)

        with ThreadPoolExecutor(2) as pool:
            with locks.lock(name, timeout=5):
                waits = [pool.submit(wait, 1, self.TTL / 2)]
                until(lambda: self.waiting(locks, name) == 1, "the first waiter queueing")
                long_after = time.monotonic() + self.TTL * 1.5
                waits.append(pool.submit(wait, 2, 30))
                until(lambda: self.waiting(locks, name) == 2, "the second waiter queueing")
                until(lambda: time.monotonic() > long_after, "the ttl passing")
            for waiter in waits:
                waiter.result(WAIT_TIMEOUT)
        assert order == [1, 2]

    @pytest.mark.faults(row=24, fired="release after expiry")
    @needs(lambda can: can.expires)
    def test_expired_holder_cannot_change_its_successor(self, locks: LockStore, name: str) -> None:
        old = locks.lock(name, ttl=0.3, renew=False)
        old.acquire(timeout=5)
        lease = old.lease
        until(lambda: lease.lost, "the lease ending")
        with ThreadPoolExecutor(1) as other:
            successor = locks.lock(name, ttl=30)
            assert other.submit(successor.acquire, timeout=WAIT_TIMEOUT).result(WAIT_TIMEOUT)
            for call in (lease.check, old.extend, old.release):
                with pytest.raises(LockLost):
                    call()
            taken = other.submit(lambda: successor.lease).result(WAIT_TIMEOUT)
            assert not taken.lost
            assert taken.token > lease.token
            assert not locks.lock(name).acquire(blocking=False), "the successor lost its lock"
            other.submit(successor.release).result(WAIT_TIMEOUT)

    @pytest.mark.faults(row="F6", fired="work for longer than the lease")
    @needs(lambda can: can.expires)
    def test_watchdog_renews_the_lease(self, locks: LockStore, name: str) -> None:
        with locks.lock(name, ttl=self.TTL, timeout=5) as lease:
            first_end = lease.deadline
            until(lambda: time.monotonic() > first_end + self.TTL / 2, "work outlasting the lease")
            assert not lease.lost
            assert not in_thread(locks.lock(name).acquire, False)

    @needs(lambda can: can.exclusion != "none")
    def test_interrupted_wait_leaves_no_trace(self, locks: LockStore, name: str) -> None:
        """A signal handler raises during the wait, as for Ctrl-C and Celery's time limits."""

        def interrupt(*args: object) -> None:
            raise KeyboardInterrupt

        lock, previous = locks.lock(name), signal.signal(signal.SIGALRM, interrupt)
        try:
            with ThreadPoolExecutor(1) as other:
                assert other.submit(lock.acquire).result(WAIT_TIMEOUT)
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                with pytest.raises(KeyboardInterrupt):
                    locks.lock(name).acquire(timeout=WAIT_TIMEOUT)
                until(lambda: not self.waiting(locks, name), "the waiter leaving the queue")
                other.submit(lock.release).result(WAIT_TIMEOUT)
        finally:
            signal.signal(signal.SIGALRM, previous)
        assert acquire_and_release(locks, name, 5)

    @needs(lambda can: can.exclusion != "none")
    def test_cancelled_task_leaves_no_trace(self, locks: LockStore, name: str) -> None:

        async def main() -> None:
            lock = locks.lock(name)

            async def acquire_and_release() -> None:
                assert await lock.aacquire(timeout=WAIT_TIMEOUT)
                await lock.arelease()

            async def wait() -> bool:
                return await lock.aacquire(timeout=WAIT_TIMEOUT)

            async with lock as lease:
                assert await lock.aacquire(timeout=0), "re-entry in the same task"
                assert lease.count == 2
                await lock.arelease()
                waiter = asyncio.create_task(wait())
                while self.waiting(locks, name) == 0:
                    await asyncio.sleep(0.005)
                waiter.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(waiter, WAIT_TIMEOUT)
                until(lambda: not self.waiting(locks, name), "the waiter leaving the queue")
            await asyncio.wait_for(asyncio.create_task(acquire_and_release()), WAIT_TIMEOUT)

        asyncio.run(main())
