"""The end of a grant: release, expiry, a killed process, an operator; and ends of a wait."""

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost, LockMisuse, LockUnavailable
from locking.backends.base import Backend, Capabilities, Claim
from locking.handler import create
from tests.locking.backends.contract_base import Another, ContractBase, needs
from tests.locking.calls import acquire_and_release, in_thread, passes_in_child, within


class Ends(ContractBase):
    """The part of the contract about the end of a grant or a wait."""

    @needs(lambda can: can.exclusion == "machines")
    def test_killed_holder_is_replaced(
        self, backend: Backend, can: Capabilities, another: Another, name: str
    ) -> None:
        assert can.expires or can.session_bound
        with another() as other:
            assert other.acquire(name, timeout=5, ttl=self.TTL)["ok"]
            assert not backend.lock(name).acquire(blocking=False)
            other.kill()
            assert acquire_and_release(backend, name)

    @needs(lambda can: can.exclusion == "machines")
    def test_killed_waiter_is_skipped(self, backend: Backend, another: Another, name: str) -> None:
        with another() as other:
            with backend.lock(name, timeout=5):
                other.send("acquire", name=name, timeout=60, ttl=self.TTL)
                if self.waiting(backend, name) is not None:
                    until(lambda: self.waiting(backend, name) == 1, "the other one queueing")
                other.kill()
            assert acquire_and_release(backend, name)

    @pytest.mark.faults(row=24, fired="release after expiry")
    @needs(lambda can: can.expires)
    def test_expired_holder_cannot_change_its_successor(self, backend: Backend, name: str) -> None:
        old = backend.lock(name, ttl=0.3, renew=False)
        old.acquire(timeout=5)
        lease = old.lease
        until(lambda: lease.lost, "the lease ending")
        with ThreadPoolExecutor(1) as other:
            successor = backend.lock(name, ttl=30)
            assert other.submit(successor.acquire, timeout=WAIT_TIMEOUT).result(WAIT_TIMEOUT)
            for call in (lease.check, old.extend, old.release):
                with pytest.raises(LockLost):
                    call()
            taken = other.submit(lambda: successor.lease).result(WAIT_TIMEOUT)
            assert not taken.lost
            assert taken.token > lease.token
            assert not backend.lock(name).acquire(blocking=False), "the successor lost its lock"
            other.submit(successor.release).result(WAIT_TIMEOUT)

    @needs(lambda can: can.expires)
    def test_extended_lease_lasts_longer(self, backend: Backend, name: str) -> None:
        lock = backend.lock(name, ttl=self.TTL, renew=False)
        lock.acquire(timeout=5)
        lease = lock.lease
        first_end = lease.deadline
        lock.extend(30)
        assert lease.deadline > first_end + 20
        until(lambda: time.monotonic() > first_end + 0.1, "the first end passing")
        assert not in_thread(backend.lock(name).acquire, False)
        assert not lease.lost
        lock.release()

    @needs(lambda can: can.expires)
    def test_grant_promises_no_more_than_its_ttl(self, backend: Backend, name: str) -> None:
        claim = Claim(name=name, ttl=30)
        grant = backend.acquire(claim, 5)
        assert grant.deadline <= time.monotonic() + 30
        assert backend.extend(claim, grant.token, 60) <= time.monotonic() + 60
        backend.release(claim, grant.token)

    @pytest.mark.faults(row="F6", fired="work for longer than the lease")
    @needs(lambda can: can.expires)
    def test_watchdog_renews_the_lease(self, backend: Backend, name: str) -> None:
        with backend.lock(name, ttl=self.TTL, timeout=5) as lease:
            first_end = lease.deadline
            until(lambda: time.monotonic() > first_end + self.TTL / 2, "work outlasting the lease")
            assert not lease.lost
            assert not in_thread(backend.lock(name).acquire, False)

    @pytest.mark.faults(row="F6", fired="the same, not renewed")
    @needs(lambda can: can.expires)
    def test_lease_ends_without_the_watchdog(self, backend: Backend, name: str) -> None:
        with pytest.raises(LockLost), backend.lock(name, ttl=0.3, timeout=5, renew=False):
            assert in_thread(acquire_and_release, backend, name)

    def test_error_of_the_body_is_not_replaced(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:
        ttl = 0.2 if can.expires else None
        with (  # noqa: PT012 - the end of the `with` is what is tested
            pytest.raises(KeyError),
            backend.lock(name, ttl=ttl, timeout=5, renew=False) as lease,
        ):
            if can.expires:
                until(lambda: lease.lost, "the lease ending")
            raise KeyError(name)
        assert acquire_and_release(backend, name, 5)

    @needs(lambda can: can.exclusion != "none")
    def test_other_claims_cannot_change_the_grant(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:
        holder, other = Claim(name=name, ttl=30), Claim(name=name, ttl=30)
        grant = backend.acquire(holder, 5)

        def held() -> list[tuple[str, int | None]]:
            return [(held.owner, held.count) for held in backend.inspect() if held.name == name]

        before = held()
        with pytest.raises(LockLost):
            backend.extend(other, grant.token, 60)
        with pytest.raises(LockLost) if can.counts_in_store else nullcontext():
            backend.set_depth(other, grant.token, 2)
        with pytest.raises(LockLost):
            backend.release(other, grant.token)
        assert held() == before
        backend.release(holder, grant.token)
        with pytest.raises(LockLost):
            backend.release(holder, grant.token)

    @needs(lambda can: can.exclusion != "none")
    @pytest.mark.parametrize("when", ["before", "during"])
    def test_cancelled_wait_leaves_no_trace(self, backend: Backend, name: str, when: str) -> None:
        claim = Claim(name=name, ttl=30)
        with backend.lock(name, timeout=5), ThreadPoolExecutor(1) as pool:
            if when == "before":
                claim.cancel()
            waiter = pool.submit(backend.acquire, claim, WAIT_TIMEOUT * 2)
            if when == "during":
                until(lambda: self.waiting(backend, name) != 0, "the wait")
                claim.cancel()
            assert waiter.result(WAIT_TIMEOUT) is None
            until(lambda: not self.waiting(backend, name), "the waiter leaving the queue")
        assert acquire_and_release(backend, name, 5)

    @needs(lambda can: can.exclusion != "none")
    def test_interrupted_wait_leaves_no_trace(self, backend: Backend, name: str) -> None:
        """A signal handler raises during the wait, as for Ctrl-C and Celery's time limits."""

        def interrupt(*args: object) -> None:
            raise KeyboardInterrupt

        lock, previous = backend.lock(name), signal.signal(signal.SIGALRM, interrupt)
        try:
            with ThreadPoolExecutor(1) as other:
                assert other.submit(lock.acquire).result(WAIT_TIMEOUT)
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                with pytest.raises(KeyboardInterrupt):
                    backend.lock(name).acquire(timeout=WAIT_TIMEOUT)
                until(lambda: not self.waiting(backend, name), "the waiter leaving the queue")
                other.submit(lock.release).result(WAIT_TIMEOUT)
        finally:
            signal.signal(signal.SIGALRM, previous)
        assert acquire_and_release(backend, name, 5)

    @needs(lambda can: can.exclusion != "none")
    def test_cancelled_task_leaves_no_trace(self, backend: Backend, name: str) -> None:

        async def main() -> None:
            lock = backend.lock(name)

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
                while self.waiting(backend, name) == 0:
                    await asyncio.sleep(0.005)
                waiter.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(waiter, WAIT_TIMEOUT)
                until(lambda: not self.waiting(backend, name), "the waiter leaving the queue")
            await asyncio.wait_for(asyncio.create_task(acquire_and_release()), WAIT_TIMEOUT)

        asyncio.run(main())

    def test_lock_works_after_a_fork(self, backend: Backend, can: Capabilities, name: str) -> None:
        lock = backend.lock(name)
        lock.acquire(timeout=5)  # opens the client, too
        free = backend.lock(f"{name}-free")

        def works_in_child() -> bool:
            held_here = lock.lease is not None
            refused = not lock.acquire(timeout=0.1) or can.exclusion != "machines"
            works = free.acquire(timeout=5)
            free.release()
            return not held_here and refused and works

        assert passes_in_child(works_in_child)
        lock.lease.check()
        lock.release()

    @needs(lambda can: can.exclusion == "machines")
    def test_unreachable_store_fails_in_bounded_time(self) -> None:
        backend = create("down", {"BACKEND": self.path, "LOCATION": self.down})
        with within(WAIT_TIMEOUT), closing(backend):
            with pytest.raises(LockUnavailable):
                backend.probe()
            with pytest.raises(LockUnavailable):
                backend.lock("contract:down").acquire(timeout=0.5)
            assert backend.lock("contract:down").lease is None

    def test_probe_succeeds(self, backend: Backend) -> None:
        backend.probe()

    def test_broken_lock_is_lost_by_its_holder(self, backend: Backend, name: str) -> None:
        lock = backend.lock(name)
        lock.acquire(timeout=5)
        try:
            assert backend.break_lock(name)
        except LockMisuse:
            lock.release()
            return
        assert not backend.break_lock(f"{name}-unknown")
        free = in_thread(acquire_and_release, backend, name)
        assert free, "a broken lock must be free for others"
        with pytest.raises(LockLost):
            lock.release()

    def test_100_locks_leave_nothing_behind(self, backend: Backend, name: str) -> None:
        def run(times: int) -> None:
            for number in range(times):
                with backend.lock(f"{name}:{number}", timeout=5):
                    pass

        run(5)
        files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        run(100)
        assert not backend.held
        assert len(os.listdir("/proc/self/fd")) <= files + 2
        assert threading.active_count() <= threads + 1
        assert not [held for held in backend.inspect() if held.name.startswith(name)]
