"""The contract of semaphores and read-write locks: who is next, and what ends a wait."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockMisuse
from locking.claims import WRITER
from locking.lease import LockStore
from locking.testing.calls import in_thread, passes_in_child
from locking.testing.contract_base import granted, needs
from tests.locking.backends.contract_shared import SharedLimits, claim_on, passed, shared
from tests.locking.backends.shared_calls import (
    lock_of,
)


class in_other_thread:
    """Hold a lock in a thread of its own."""

    def __init__(self, lock: Any) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._lock = lock

    def __enter__(self) -> None:
        assert self._pool.submit(self._lock.acquire, timeout=5).result(WAIT_TIMEOUT)

    def __exit__(self, *exc_info: object) -> None:
        self._pool.submit(self._lock.release).result(WAIT_TIMEOUT)
        self._pool.shutdown()


class SharedOrder(SharedLimits):
    """Who is next, and what ends a wait."""

    @shared
    def test_semaphore_is_granted_in_order(self, locks: LockStore, name: str) -> None:
        order: list[int] = []

        def wait(place: int) -> None:
            with locks.semaphore(name, 2, timeout=WAIT_TIMEOUT):
                order.append(place)

        with ThreadPoolExecutor(5) as pool, locks.semaphore(name, 2, timeout=5):
            with in_other_thread(lock_of(locks, "semaphore", name, 2)):
                for place in range(5):
                    pool.submit(wait, place)
                    until(
                        lambda size=place + 1: self.queued(locks, f"semaphore:{name}") == size,
                        f"waiter {place} queueing",
                    )
            until(lambda: len(order) == 5, "all waiters getting the other slot")
        assert order == [*range(5)]

    @shared
    def test_waiting_writer_goes_before_later_readers(self, locks: LockStore, name: str) -> None:
        order: list[str] = []
        both = locks.read_write(name)

        def wait(kind: str) -> None:
            with lock_of(locks, kind, name, timeout=WAIT_TIMEOUT):
                order.append(kind)

        with ThreadPoolExecutor(3) as pool, both.read(timeout=5):
            assert passed(locks, "read", name), "the control: no writer waits"
            for size, kind in enumerate(["write", "read", "read"], 1):
                pool.submit(wait, kind)
                until(
                    lambda size=size: self.queued(locks, f"read-write:{name}") == size,
                    f"the {kind} waiting",
                )
            assert not passed(locks, "read", name)
            assert not order
        assert order == ["write", "read", "read"]

    @shared
    @pytest.mark.parametrize("when", ["cancelled", "timed out"])
    def test_writer_that_gives_up_lets_readers_in(
        self, locks: LockStore, name: str, when: str
    ) -> None:
        writer = claim_on(locks, name, WRITER)
        timeout = WAIT_TIMEOUT * 2 if when == "cancelled" else 1.5
        with ThreadPoolExecutor(2) as pool, locks.read_write(name).read(timeout=5):
            waiting = pool.submit(locks.backend.acquire, writer, timeout)
            until(lambda: self.queued(locks, writer.name) == 1, "the writer waiting")
            reader = pool.submit(passed, locks, "read", name, WAIT_TIMEOUT)
            until(lambda: self.queued(locks, writer.name) == 2, "the reader waiting")
            if when == "cancelled":
                writer.cancel()
            assert waiting.result(WAIT_TIMEOUT) is None
            assert reader.result(WAIT_TIMEOUT)
            until(lambda: not self.queued(locks, writer.name), "the queue being empty")

    @shared
    def test_wait_for_a_slot_ends_at_its_timeout(self, locks: LockStore, name: str) -> None:
        holder = claim_on(locks, name, 1)
        grant = granted(locks, holder)
        started = time.monotonic()
        assert locks.backend.acquire(claim_on(locks, name, 1), 0.3) is None
        assert 0.3 <= time.monotonic() - started < 5
        cancelled = claim_on(locks, name, 1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(locks.backend.acquire, cancelled, WAIT_TIMEOUT * 2)
            until(lambda: self.queued(locks, holder.name) == 1, "the wait")
            cancelled.cancel()
            assert waiting.result(WAIT_TIMEOUT) is None
        until(lambda: not self.queued(locks, holder.name), "the waiter leaving the queue")
        locks.backend.release(holder, grant.token)
        assert passed(locks, "semaphore", name, 5, slots=1)

    @shared
    def test_release_wakes_the_first_waiter(self, locks: LockStore, name: str) -> None:
        """Long before the waiter would ask again by itself."""
        lock = locks.semaphore(name, 1, ttl=60)
        assert lock.acquire(timeout=5)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(passed, locks, "semaphore", name, WAIT_TIMEOUT, 1)
            until(lambda: self.queued(locks, f"semaphore:{name}") == 1, "the wait")
            released = time.monotonic()
            lock.release()
            assert waiting.result(WAIT_TIMEOUT)
        assert time.monotonic() - released < 5

    @pytest.mark.faults(row=24, fired="re-entry")
    @shared
    def test_caller_enters_again(self, locks: LockStore, name: str) -> None:
        both = locks.read_write(name)
        for lock in (locks.semaphore(name, 1), both.read(), both.write()):
            with lock as lease, lock as again:
                assert again is lease
                assert lease.count == 2
        with both.write(timeout=5) as lease, both.read() as again:
            assert again is lease, "a writer may read"
        assert passed(locks, "write", name, 5)

    @pytest.mark.faults(row=24, fired="read, then write")
    @shared
    @pytest.mark.parametrize("reentrant", [True, False])
    def test_reader_cannot_become_a_writer(
        self, locks: LockStore, name: str, reentrant: bool
    ) -> None:
        both = locks.read_write(name)

        async def upgrade() -> None:
            async with both.read(timeout=5), both.write(reentrant=reentrant):
                pass

        with both.read(timeout=5) as lease:
            with pytest.raises(LockMisuse, match="release it before"):
                both.write(reentrant=reentrant).acquire()
            with pytest.raises(LockMisuse, match="not held"):
                both.write().release()
            lease.check()
        with pytest.raises(LockMisuse, match="release it before"):
            asyncio.run(upgrade())
        assert passed(locks, "write", name, 5)

    @shared
    def test_tasks_share_the_slots(self, locks: LockStore, name: str) -> None:
        inside, most = 0, 0

        async def hold() -> None:
            nonlocal inside, most
            async with locks.semaphore(name, 2, timeout=WAIT_TIMEOUT):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.02)  # the work that the lock is for
                inside -= 1

        async def enter(kind: str) -> None:
            async with lock_of(locks, kind, name, timeout=WAIT_TIMEOUT):
                pass

        async def main() -> None:
            await asyncio.gather(*(hold() for _ in range(8)))
            async with locks.read_write(name).read(timeout=5):
                writer = asyncio.create_task(enter("write"))
                while not self.queued(locks, f"read-write:{name}"):
                    await asyncio.sleep(0.005)
                writer.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(writer, WAIT_TIMEOUT)
                await asyncio.wait_for(asyncio.create_task(enter("read")), WAIT_TIMEOUT)
            await asyncio.wait_for(asyncio.create_task(enter("write")), WAIT_TIMEOUT)

        asyncio.run(main())
        assert most == 2

    @shared
    def test_child_of_a_fork_holds_no_slot(self, locks: LockStore, name: str) -> None:
        lock = locks.semaphore(name, 1, timeout=5)

        def works_in_child() -> bool:
            return lock.lease is None and not lock.acquire(timeout=0.1)

        with lock as lease:
            assert passes_in_child(works_in_child)
            lease.check()

    @shared
    @pytest.mark.parametrize("slots", [0, -1, 1.5, True, "3", 10_001])
    def test_bad_number_of_slots_is_refused(self, locks: LockStore, name: str, slots: Any) -> None:
        with pytest.raises(LockMisuse, match="whole number"):
            locks.semaphore(name, slots)

    @shared
    def test_other_number_of_slots_is_refused(self, locks: LockStore, name: str) -> None:
        if not locks.capabilities.lists_holders:
            return  # sessions cannot see what others have
        with locks.semaphore(name, 2, timeout=5) as lease:
            for timeout in (0, 1):
                with pytest.raises(LockMisuse, match="slots=2"):
                    in_thread(locks.semaphore(name, 3).acquire, timeout=timeout)
            lease.check()
        with locks.semaphore(name, 3, timeout=5):
            pass

    @needs(lambda can: can.shared and can.hands_over)
    def test_slot_is_not_handed_over(self, locks: LockStore, name: str) -> None:
        with locks.semaphore(name, 2, timeout=5) as lease:
            with pytest.raises(LockMisuse, match="only a plain lock"):
                lease.hand_over()
            lease.check()

    @shared
    def test_names_of_the_kinds_are_apart(self, locks: LockStore, name: str) -> None:
        three = [locks.lock(name), locks.semaphore(name, 1), locks.read_write(name).write()]
        for lock in three:
            assert lock.acquire(timeout=5)
        for lock in three:
            lock.release()
        for kind in ("semaphore", "read-write"):
            with pytest.raises(LockMisuse):
                locks.lock(f"{kind}:{name}")
        with pytest.raises(LockMisuse):
            locks.semaphore("", 1)

    @needs(lambda can: not can.shared)
    def test_backend_without_shared_locks_says_so(self, locks: LockStore, name: str) -> None:
        for make in (partial(locks.semaphore, name, 2), locks.read_write(name).read):
            with pytest.raises(LockMisuse, match="redis or zookeeper"):
                make()
