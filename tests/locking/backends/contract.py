"""The contract of every backend of the library: the public one, and tests of leases on its store.

`none` is the control, which must fail to exclude.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from pytest_django import DjangoDbBlocker

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost, LockMisuse
from locking.lease import LockStore, TakenOver
from locking.testing import contract
from locking.testing.calls import acquire_and_release, in_thread
from locking.testing.contract_base import Another, ContractBase, Open, needs
from locking.testing.contract_faults import LONG
from locking.testing.driver import StoreDriver
from tests.locking.backends.store_drivers import OwnStore
from tests.locking.calls import acquired
from tests.locking.lock_worker import CONTEND_TIMEOUT, Forked, lock_commands


def jain(shares: list[int]) -> float:
    """Return 1 for equal shares, 1/n if one has everything (Jain, Chiu and Hawe 1984)."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def end_of_lease(locks: LockStore, name: str) -> float:
    """Return the monotonic time at which the lease ends if it is not renewed."""
    (held,) = locks.backend.holders(name)
    assert held.expires_in is not None
    return time.monotonic() + held.expires_in


class OnRealStores(ContractBase):
    """The fixtures: forked processes, and the driver of a class."""

    is_real = True
    """Its tests belong to the rows of faults."""
    repeats = ("release", "withdrawal")

    @pytest.fixture
    def databases(self, driver: StoreDriver) -> dict[str, str]:
        """The aliases that other processes need, with their URLs."""
        return driver.databases if isinstance(driver, OwnStore) else {}

    @pytest.fixture(scope="class")
    @classmethod
    def driver(cls, django_db_blocker: DjangoDbBlocker) -> Iterator[StoreDriver]:
        """Return the store of a class; its servers start with the first test of a fault."""
        with ExitStack() as stack:
            driver = cls.Driver()
            if isinstance(driver, OwnStore):
                driver.start(stack, django_db_blocker)
            yield driver

    @pytest.fixture
    def another(self, conf: dict[str, Any], databases: dict[str, str]) -> Iterator[Another]:
        started: list[Forked] = []

        def start() -> Forked:
            started.append(Forked(lock_commands, conf, databases=databases))
            return started[-1]

        yield start
        for worker in started:
            worker.close()


class Contract(OnRealStores, contract.Contract):
    """The public contract, and what leases add to it."""

    test_every_declared_capability_is_proved = None  # tests of their own prove what hooks cannot

    @pytest.mark.faults(row=24, fired="re-entry")
    def test_holder_can_enter_again(self, locks: LockStore, name: str) -> None:
        assert locks.capabilities.reentrant
        counts = locks.capabilities.counts_in_store
        with locks.lock(name, timeout=5) as lease:
            with locks.lock(name, timeout=5) as again:
                assert again is lease
                assert lease.count == 2
                assert not counts or self.held(locks, name) == [(lease.owner, 2)]
            assert not lease.lost
            got = in_thread(acquire_and_release, locks, name, 0)
            assert got is (locks.capabilities.exclusion == "none"), "the inner release freed it"
            assert not counts or self.held(locks, name) == [(lease.owner, 1)]
        assert not locks.lock(name).locked()

    @pytest.mark.faults(row=24, fired="re-entry, and a reader that wants to write")
    @needs(lambda can: can.shared)
    def test_holder_of_a_place_enters_again_and_no_reader_becomes_a_writer(
        self, locks: LockStore, name: str
    ) -> None:
        both = locks.read_write(name)
        for lock in (locks.semaphore(name, 1), both.read(), both.write()):
            with lock as lease, lock as again:
                assert again is lease
                assert lease.count == 2
        with both.write(timeout=5) as lease, both.read() as again:
            assert again is lease, "a writer may read"

        async def upgrade() -> None:
            async with both.read(timeout=5), both.write():
                pass

        with both.read(timeout=5) as lease:
            with pytest.raises(LockMisuse, match="release it before"):
                both.write().acquire()
            with pytest.raises(LockMisuse, match="not held"):
                both.write().release()
            lease.check()
        with pytest.raises(LockMisuse, match="release it before"):
            asyncio.run(upgrade())

    @needs(lambda can: can.shared)
    def test_bad_slots_and_mixed_kinds_are_refused(self, locks: LockStore, name: str) -> None:
        bad: list[Any] = [0, -1, 1.5, True, "3", 10_001]
        for slots in bad:
            with pytest.raises(LockMisuse, match="whole number"):
                locks.semaphore(name, slots)
        three = [locks.lock(name), locks.semaphore(name, 1), locks.read_write(name).write()]
        for lock in three:
            assert lock.acquire(timeout=5)
        if locks.capabilities.hands_over:
            with pytest.raises(LockMisuse, match="only a plain lock"):
                three[1].lease.hand_over()
        for lock in three:
            lock.release()
        for kind in ("semaphore", "read-write"):
            with pytest.raises(LockMisuse):
                locks.lock(f"{kind}:{name}")

    @needs(lambda can: not can.shared)
    def test_backend_without_shared_locks_says_so(self, locks: LockStore, name: str) -> None:
        for make in (lambda: locks.semaphore(name, 2), locks.read_write(name).read):
            with pytest.raises(LockMisuse, match="has no semaphores"):
                make()

    @pytest.mark.faults(row="F6", fired="work for longer than the lease")
    @needs(lambda can: can.expires)
    def test_watchdog_renews_the_lease(self, locks: LockStore, name: str) -> None:
        def is_renewed() -> bool:
            """Return False if the lease was lost, as when this process did not run for its ttl."""
            with suppress(LockLost), locks.lock(name, ttl=self.TTL, timeout=5) as lease:
                end = lease.deadline + self.TTL / 2
                until(lambda: time.monotonic() > end, "work outlasting the lease")
                is_taken = in_thread(locks.lock(name).acquire, False)
                assert lease.lost or not is_taken
                return not lease.lost
            return False

        assert any(is_renewed() for _ in range(5))

    @needs(lambda can: can.exclusion != "none")
    @pytest.mark.parametrize("is_waiting", [True, False], ids=["it waits", "it holds"])
    def test_task_left_in_a_closed_event_loop_keeps_no_lock(
        self, locks: LockStore, name: str, is_waiting: bool
    ) -> None:
        """Nothing ends the task, and it disturbs no other event loop."""
        lock, loop = locks.lock(name, ttl=LONG), asyncio.new_event_loop()

        async def hold() -> None:
            async with lock:
                await loop.create_future()

        async def reached() -> None:
            while not (self.waiting(locks, name) != 0 if is_waiting else locks.held):
                await asyncio.sleep(0.001)

        async def use(other: str) -> None:
            async with locks.lock(other, timeout=WAIT_TIMEOUT):
                pass

        if is_waiting:
            assert lock.acquire(timeout=5)
        task = loop.create_task(hold())
        loop.run_until_complete(reached())
        loop.close()
        asyncio.run(use(f"{name}-free"))
        if is_waiting:
            lock.release()
        asyncio.run(use(name))
        assert not task.done()
        # Now: ended by the garbage collector inside `ast.parse`, it would break that (Python 3.11).
        del task
        gc.collect()

    @pytest.mark.faults(row=2, xf=True, fired="GIL held for 2.5 leases")
    @needs(lambda can: can.expires and can.exclusion == "machines")
    def test_gil_held_longer_than_the_lease(
        self, locks: LockStore, another: Another, name: str
    ) -> None:
        """The watchdog starves with its process, which finds out afterwards."""
        other, lock = another(), locks.lock(name, ttl=self.TTL)
        lease = acquired(lock, timeout=5)
        other.send("acquire", name, WAIT_TIMEOUT, 30)
        ctypes.PyDLL(None).usleep(int(2.5 * self.TTL * 1e6))  # PyDLL, unlike CDLL, keeps the GIL
        assert lease.lost
        with pytest.raises(LockLost):
            lock.release()
        _, token = other.receive()
        assert token > lease.token or not locks.capabilities.fencing
        assert not other.call("is_lost", name)
        other.call("release", name)

    @pytest.mark.faults(row=23, fired="contenders at once")
    @pytest.mark.parametrize("contenders", [8, pytest.param(64, marks=pytest.mark.long)])
    @needs(lambda can: not can.fair and can.exclusion == "machines")
    def test_every_contender_gets_a_share(
        self, another: Another, name: str, contenders: int
    ) -> None:
        """Chance alone makes unequal shares of few grants; more rounds leave what is unfair.

        A lottery of m grants for each contender has a Jain index of about m / (m + 1).
        """
        workers, shares = [another() for _ in range(4)], [0] * contenders
        for worker in workers:
            assert worker.call("acquire", name, CONTEND_TIMEOUT, None)
            worker.call("release", name)
        for _ in range(32):
            end = time.monotonic() + 0.5
            for worker in workers:
                worker.send("contend", name, contenders // 4, end)
            results = [worker.receive() for worker in workers]
            got = [number for grants, _ in results for number in grants]
            assert max(longest for _, longest in results) < CONTEND_TIMEOUT
            shares = [sum(both) for both in zip(shares, got, strict=True)]
            if jain(shares) >= 0.9 and min(shares) > 0:
                return
        pytest.fail(f"Jain index {jain(shares):.2f} of {shares}")

    @needs(lambda can: can.exclusion == "machines")
    def test_many_locks_leave_no_memory_descriptor_or_thread(
        self, locks: LockStore, name: str
    ) -> None:
        def use(times: int) -> None:
            for number in range(times):
                with locks.lock(f"{name}:{number % 100}", timeout=WAIT_TIMEOUT):
                    pass

        def resources() -> tuple[int, int]:
            gc.collect()
            return tracemalloc.get_traced_memory()[0], len(os.listdir("/proc/self/fd"))

        tracemalloc.start()
        try:
            use(100)
            threads = threading.active_count()
            for _ in range(3):  # what a thread of another test allocates does not grow each time
                before = resources()
                use(300)
                memory, files = (new - old for old, new in zip(before, resources(), strict=True))
                if memory < 150_000:
                    break
        finally:
            tracemalloc.stop()
        assert memory < 150_000, "more than the bounded caches of names and owners"
        assert files <= 3, "more than a thread that releases a dropped lock of another test opens"
        until(lambda: threading.active_count() <= threads, "the end of new threads")
        assert not locks.held
        assert not [held for held in locks.inspect() if held.name.startswith(name)]

    @needs(lambda can: can.lists_holders and can.exclusion == "machines", "requests")
    def test_question_who_holds_a_name_does_not_read_other_locks(
        self, driver: StoreDriver, open_store: Open, name: str
    ) -> None:
        locks, sent = open_store(), list[int]()
        names = [name, *(f"{name}-{number}" for number in range(5))]
        with locks.all_of(names, ttl=LONG, timeout=5) as leases:
            for _ in range(3):  # the first question opens a connection
                before = driver.requests()
                (found,) = locks.backend.holders(name)
                sent.append(driver.requests() - before)
            assert (found.owner, found.token) == (leases[name].owner, leases[name].token)
        assert min(sent) <= 1

    @needs(lambda can: can.hands_over and can.exclusion == "machines")
    def test_another_process_continues_the_lease_and_renews_it(
        self, locks: LockStore, another: Another, name: str
    ) -> None:
        worker, lock = another(), locks.lock(name, ttl=30)
        lease = acquired(lock, timeout=5)
        ticket = lease.hand_over()
        assert worker.call("take_over", json.loads(json.dumps(ticket)), 6) > lease.token
        with pytest.raises(LockLost):
            lease.check()
        lock.release()
        with pytest.raises(LockLost):
            TakenOver(locks, ticket).acquire()
        ends_at = end_of_lease(locks, name)
        until(lambda: end_of_lease(locks, name) > ends_at + 1, "a renewal")
        assert not worker.call("is_lost", name)
        assert not in_thread(locks.lock(name).acquire, timeout=0)
        assert worker.call("release", name) == ""
        assert acquire_and_release(locks, name)

    @needs(lambda can: not can.hands_over)
    def test_backend_without_hand_over_refuses_it(self, locks: LockStore, name: str) -> None:
        with locks.lock(name, timeout=5) as lease:
            with pytest.raises(LockMisuse, match="cannot hand over a lease"):
                lease.hand_over()
            assert not lease.lost
