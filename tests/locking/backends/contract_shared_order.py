"""The contract of semaphores and read-write locks: who is next, and what ends a wait."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockMisuse
from locking.backends.base import WRITER, Backend
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
    def test_semaphore_is_granted_in_order(self, backend: Backend, name: str) -> None:
        order: list[int] = []

        def wait(place: int) -> None:
            with backend.semaphore(name, 2, timeout=WAIT_TIMEOUT):
                order.append(place)

        with ThreadPoolExecutor(5) as pool, backend.semaphore(name, 2, timeout=5):
            with in_other_thread(lock_of(backend, "semaphore", name, 2)):
                for place in range(5):
                    pool.submit(wait, place)
                    until(
                        lambda size=place + 1: self.queued(backend, f"semaphore:{name}") == size,
                        f"waiter {place} queueing",
                    )
            until(lambda: len(order) == 5, "all waiters getting the other slot")
        assert order == [*range(5)]

    @shared
    def test_waiting_writer_goes_before_later_readers(self, backend: Backend, name: str) -> None:
        order: list[str] = []
        both = backend.read_write(name)

        def wait(kind: str) -> None:
            with lock_of(backend, kind, name, timeout=WAIT_TIMEOUT):
                order.append(kind)

        with ThreadPoolExecutor(3) as pool, both.read(timeout=5):
            assert passed(backend, "read", name), "the control: no writer waits"
            for size, kind in enumerate(["write", "read", "read"], 1):
                pool.submit(wait, kind)
                until(
                    lambda size=size: self.queued(backend, f"read-write:{name}") == size,
                    f"the {kind} waiting",
                )
            assert not passed(backend, "read", name)
            assert not order
        assert order == ["write", "read", "read"]

    @shared
    @pytest.mark.parametrize("when", ["cancelled", "timed out"])
    def test_writer_that_gives_up_lets_readers_in(
        self, backend: Backend, name: str, when: str
    ) -> None:
        writer = claim_on(backend, name, WRITER)
        timeout = WAIT_TIMEOUT * 2 if when == "cancelled" else 1.5
        with ThreadPoolExecutor(2) as pool, backend.read_write(name).read(timeout=5):
            waiting = pool.submit(backend.acquire, writer, timeout)
            until(lambda: self.queued(backend, writer.name) == 1, "the writer waiting")
            reader = pool.submit(passed, backend, "read", name, WAIT_TIMEOUT)
            until(lambda: self.queued(backend, writer.name) == 2, "the reader waiting")
            if when == "cancelled":
                writer.cancel()
            assert waiting.result(WAIT_TIMEOUT) is None
            assert reader.result(WAIT_TIMEOUT)
            until(lambda: not self.queued(backend, writer.name), "the queue being empty")

    @shared
    def test_wait_for_a_slot_ends_at_its_timeout(self, backend: Backend, name: str) -> None:
        holder = claim_on(backend, name, 1)
        grant = granted(backend, holder)
        started = time.monotonic()
        assert backend.acquire(claim_on(backend, name, 1), 0.3) is None
        assert 0.3 <= time.monotonic() - started < 5
        cancelled = claim_on(backend, name, 1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(backend.acquire, cancelled, WAIT_TIMEOUT * 2)
            until(lambda: self.queued(backend, holder.name) == 1, "the wait")
            cancelled.cancel()
            assert waiting.result(WAIT_TIMEOUT) is None
        until(lambda: not self.queued(backend, holder.name), "the waiter leaving the queue")
        backend.release(holder, grant.token)
        assert passed(backend, "semaphore", name, 5, slots=1)

    @shared
    def test_release_wakes_the_first_waiter(self, backend: Backend, name: str) -> None:
        """Long before the waiter would ask again by itself."""
        lock = backend.semaphore(name, 1, ttl=60)
        assert lock.acquire(timeout=5)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(passed, backend, "semaphore", name, WAIT_TIMEOUT, 1)
            until(lambda: self.queued(backend, f"semaphore:{name}") == 1, "the wait")
            released = time.monotonic()
            lock.release()
            assert waiting.result(WAIT_TIMEOUT)
        assert time.monotonic() - released < 5

    @pytest.mark.faults(row=24, fired="re-entry")
    @shared
    def test_caller_enters_again(self, backend: Backend, name: str) -> None:
        both = backend.read_write(name)
        for lock in (backend.semaphore(name, 1), both.read(), both.write()):
            with lock as lease, lock as again:
                assert again is lease
                assert lease.count == 2
        with both.write(timeout=5) as lease, both.read() as again:
            assert again is lease, "a writer may read"
        assert passed(backend, "write", name, 5)

    @pytest.mark.faults(row=24, fired="read, then write")
    @shared
    @pytest.mark.parametrize("reentrant", [True, False])
    def test_reader_cannot_become_a_writer(
        self, backend: Backend, name: str, reentrant: bool
    ) -> None:
        both = backend.read_write(name)

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
        assert passed(backend, "write", name, 5)

    @shared
    def test_tasks_share_the_slots(self, backend: Backend, name: str) -> None:
        inside, most = 0, 0

        async def hold() -> None:
            nonlocal inside, most
            async with backend.semaphore(name, 2, timeout=WAIT_TIMEOUT):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.02)  # the work that the lock is for
                inside -= 1

        async def enter(kind: str) -> None:
            async with lock_of(backend, kind, name, timeout=WAIT_TIMEOUT):
                pass

        async def main() -> None:
            await asyncio.gather(*(hold() for _ in range(8)))
            async with backend.read_write(name).read(timeout=5):
                writer = asyncio.create_task(enter("write"))
                while not self.queued(backend, f"read-write:{name}"):
                    await asyncio.sleep(0.005)
                writer.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(writer, WAIT_TIMEOUT)
                await asyncio.wait_for(asyncio.create_task(enter("read")), WAIT_TIMEOUT)
            await asyncio.wait_for(asyncio.create_task(enter("write")), WAIT_TIMEOUT)

        asyncio.run(main())
        assert most == 2

    @shared
    def test_child_of_a_fork_holds_no_slot(self, backend: Backend, name: str) -> None:
        lock = backend.semaphore(name, 1, timeout=5)

        def works_in_child() -> bool:
            return lock.lease is None and not lock.acquire(timeout=0.1)

        with lock as lease:
            assert passes_in_child(works_in_child)
            lease.check()

    @shared
    @pytest.mark.parametrize("slots", [0, -1, 1.5, True, "3", 10_001])
    def test_bad_number_of_slots_is_refused(self, backend: Backend, name: str, slots: Any) -> None:
        with pytest.raises(LockMisuse, match="whole number"):
            backend.semaphore(name, slots)

    @shared
    def test_other_number_of_slots_is_refused(self, backend: Backend, name: str) -> None:
        if not backend.capabilities.lists_holders:
            return  # sessions cannot see what others have
        with backend.semaphore(name, 2, timeout=5) as lease:
            for timeout in (0, 1):
                with pytest.raises(LockMisuse, match="slots=2"):
                    in_thread(backend.semaphore(name, 3).acquire, timeout=timeout)
            lease.check()
        with backend.semaphore(name, 3, timeout=5):
            pass

    @needs(lambda can: can.shared and can.hands_over)
    def test_slot_is_not_handed_over(self, backend: Backend, name: str) -> None:
        with backend.semaphore(name, 2, timeout=5) as lease:
            with pytest.raises(LockMisuse, match="only a plain lock"):
                lease.hand_over()
            lease.check()

    @shared
    def test_names_of_the_kinds_are_apart(self, backend: Backend, name: str) -> None:
        locks = [backend.lock(name), backend.semaphore(name, 1), backend.read_write(name).write()]
        for lock in locks:
            assert lock.acquire(timeout=5)
        for lock in locks:
            lock.release()
        for kind in ("semaphore", "read-write"):
            with pytest.raises(LockMisuse):
                backend.lock(f"{kind}:{name}")
        with pytest.raises(LockMisuse):
            backend.semaphore("", 1)

    @needs(lambda can: not can.shared)
    def test_backend_without_shared_locks_says_so(self, backend: Backend, name: str) -> None:
        for make in (partial(backend.semaphore, name, 2), backend.read_write(name).read):
            with pytest.raises(LockMisuse, match="redis, zookeeper or postgresql_session"):
                make()
