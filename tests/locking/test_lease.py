"""What a caller holds, whatever the store: waiting, re-entry, loss, misuse."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from loadtest.faults.waiting import until
from locking import LockLost, LockMisuse, LockTimeout, LockUnavailable
from tests.locking.scripted import PATIENCE, ScriptedBackend, scripted, silent, waiters


@pytest.fixture
def other() -> Iterator[ThreadPoolExecutor]:
    """One other thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


# --- waiting ----------------------------------------------------------------------------------


def test_acquire_waits_for_ever_unless_told(process, other) -> None:
    lock = process.lock("a")
    lock.acquire()
    waiter = other.submit(process.lock("a").acquire)
    until(lambda: waiters(process) == 1, "the other one waiting")
    assert not waiter.done()
    lock.release()
    assert waiter.result(PATIENCE)


def test_acquire_says_false_where_the_with_statement_raises(process, other) -> None:
    def with_statement() -> None:
        with process.lock("a", timeout=0.01):
            pytest.fail("entered a lock that somebody else holds")

    with process.lock("a"):
        assert other.submit(process.lock("a").acquire, False).result(PATIENCE) is False
        assert other.submit(process.lock("a").acquire, timeout=0.01).result(PATIENCE) is False
        with pytest.raises(LockTimeout, match=r"0\.01 s"):
            other.submit(with_statement).result(PATIENCE)


def test_the_locks_own_timeout_bounds_acquire_too(process, other) -> None:
    with process.lock("a"):
        assert other.submit(process.lock("a", timeout=0.01).acquire).result(PATIENCE) is False


def test_the_with_statement_waits_the_backends_timeout(other) -> None:
    backend = scripted(TIMEOUT=0.01)

    def enter() -> None:
        with backend.lock("a"):
            pass

    with backend.lock("a"), pytest.raises(LockTimeout, match=r"0\.01 s"):
        other.submit(enter).result(PATIENCE)


def test_a_store_that_is_silent_leaves_nothing_held() -> None:
    backend = scripted()
    backend.then("acquire", silent)
    with pytest.raises(LockUnavailable):
        backend.lock("a").acquire()
    assert not backend.held


# --- re-entry ---------------------------------------------------------------------------------


def test_a_thread_may_take_again_what_it_holds(other) -> None:
    backend = scripted()
    lock = backend.lock("a")
    with lock as outer, lock as inner:
        assert inner is outer
        assert inner.count == 2
        assert backend.inspect()[0].count == 2
        lock.release()
        assert backend.inspect()[0].count == 1
        assert other.submit(lock.acquire, False).result(PATIENCE) is False
        lock.acquire()
    assert not backend.inspect()
    assert len(backend.times("release")) == 1


def test_a_task_may_take_again_what_it_holds_and_another_task_may_not(process) -> None:
    async def main() -> None:
        lock = process.lock("a")
        async with lock as outer:
            async with lock as inner:
                assert inner is outer
                assert inner.count == 2
                elsewhere = asyncio.create_task(lock.aacquire(blocking=False))
                assert await elsewhere is False
            assert outer.count == 1
        assert await asyncio.create_task(lock.aacquire(blocking=False))

    asyncio.run(main())


def test_a_new_thread_does_not_inherit_what_a_dead_one_held() -> None:
    """Python gives a later thread the ident of one that has ended."""
    backend = scripted()
    got: list[tuple[int, bool]] = []

    def take() -> None:
        lock = backend.lock("a", ttl=60, renew=False)
        got.append((threading.get_ident(), lock.acquire(blocking=False)))

    for _ in range(500):
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
        if len(got) > 1 and got[-1][0] == got[0][0]:
            break
    else:
        pytest.fail("the fault did not fire: no ident was used again")
    assert [took for _, took in got] == [True] + [False] * (len(got) - 1)


def test_reentering_a_lost_lock_is_an_error() -> None:
    backend = scripted()
    lock = backend.lock("a")
    lock.acquire()
    backend.break_lock("a")
    with pytest.raises(LockLost):
        lock.acquire()
    assert lock.lease is not None
    assert lock.lease.lost
    with pytest.raises(LockLost):
        lock.release()
    assert lock.acquire(blocking=False), "after its release it can be taken afresh"
    lock.release()


# --- loss -------------------------------------------------------------------------------------


def test_a_lost_lock_is_an_error_at_the_end_of_the_block() -> None:
    backend = scripted()
    with pytest.raises(LockLost), backend.lock("a"):
        backend.break_lock("a")


@pytest.mark.parametrize("fault", ["lost", "silent", "already released"])
def test_the_blocks_own_error_is_the_one_that_shows(fault: str) -> None:
    backend = scripted()
    lock = backend.lock("a")

    def strike() -> None:
        if fault == "lost":
            backend.break_lock("a")
        elif fault == "silent":
            backend.then("release", silent)
        else:
            lock.release()

    async def in_a_task() -> None:
        async with lock:
            strike()
            raise KeyError("own")

    def in_a_thread() -> None:
        with lock:
            strike()
            raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        in_a_thread()
    backend.break_lock("a")
    with pytest.raises(KeyError, match="own"):
        asyncio.run(in_a_task())
    assert not backend.held


def test_expiry_is_a_loss_even_while_the_store_has_no_successor() -> None:
    backend = scripted()
    lock = backend.lock("a", ttl=0.02, renew=False)
    lock.acquire()
    lease = lock.lease
    until(lambda: lease.lost, "the lease ending")
    assert lease.remaining == 0
    for call in (lease.check, lock.extend, lock.release):
        with pytest.raises(LockLost):
            call()
    assert lock.lease is None


def test_a_holder_is_late_by_its_own_clock_even_where_the_store_lets_it_release() -> None:
    backend = scripted()
    lock = backend.lock("a", renew=False)
    lock.acquire()
    assert lock.lease is not None
    lock.lease.claim.deadline = time.monotonic()
    with pytest.raises(LockLost, match="before its release"):
        lock.release()
    assert not backend.inspect(), "it was given back all the same"


def test_on_lost_runs_once_and_its_own_error_harms_nobody(caplog) -> None:
    backend = scripted()
    told = []

    def on_lost(lease) -> None:
        told.append(lease)
        raise ValueError("from the callback")

    lock = backend.lock("a", on_lost=on_lost)
    lock.acquire()
    lease = lock.lease
    backend.break_lock("a")
    for call in (lock.extend, lock.acquire, lock.release):
        with pytest.raises(LockLost):
            call()
        assert lease.lost
    assert told == [lease]
    assert "on_lost failed" in caplog.text


def test_many_who_find_the_loss_at_once_report_it_once() -> None:
    backend = scripted()
    told = []
    lock = backend.lock("a", on_lost=told.append)
    lock.acquire()
    start = threading.Barrier(8)

    def find_out() -> None:
        start.wait(PATIENCE)
        lock_lease.mark_lost()

    lock_lease = lock.lease
    with ThreadPoolExecutor(8) as pool:
        for found in [pool.submit(find_out) for _ in range(8)]:
            found.result(PATIENCE)
    assert told == [lock_lease]


def test_log_lines_carry_name_owner_and_token(caplog) -> None:
    backend = scripted()
    with pytest.raises(LockLost), backend.lock("sale:7") as lease:
        backend.break_lock("sale:7")
    line = next(record for record in caplog.records if "lock lost" in record.message)
    assert (line.lock_name, line.lock_owner, line.lock_token) == (
        "sale:7",
        lease.owner,
        lease.token,
    )
    assert f"name='sale:7' owner={lease.owner} token={lease.token}" in line.message


def test_an_owner_can_be_read_and_not_guessed(process) -> None:
    owners = set()
    for _ in range(100):
        with process.lock("a") as lease:
            owners.add(lease.owner)
    assert len(owners) == 100
    host, pid, thread, secret = owners.pop().split(":")
    assert host
    assert (int(pid), int(thread, 16)) == (os.getpid(), threading.get_ident())
    assert len(secret) >= 16


def test_two_may_let_go_of_a_lease_at_once() -> None:
    """The watchdog and the thread of a release whose task has ended."""

    class Shared(dict):
        def get(self, key: object) -> object:
            return self.pop(key)  # by the other, after the look

    backend = scripted()
    with backend.lock("a", renew=False) as lease:
        backend.held, held = Shared(backend.held), backend.held
        lease.discard()
        assert not backend.held
        backend.held = held


# --- fork, misuse -----------------------------------------------------------------------------


def test_a_forked_child_holds_nothing(process) -> None:
    lock = process.lock("a")
    with lock:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    lock.release()
                except LockMisuse:
                    code = 0 if lock.lease is None and not process.inspect() else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        lock.lease.check()


@pytest.mark.parametrize(
    "misuse",
    [
        lambda b: b.lock(""),
        lambda b: b.lock("x" * 201),
        lambda b: b.lock(7),
        lambda b: b.lock("two\nlines"),
        lambda b: b.lock("a", ttl=0),
        lambda b: b.lock("a", ttl=-1),
        lambda b: b.lock("a", ttl=math.inf),
        lambda b: b.lock("a", ttl=1e16),
        lambda b: b.lock("a", ttl=math.nan),
        lambda b: b.lock("a", timeout=-0.1),
        lambda b: b.lock("a").acquire(timeout=-1),
        lambda b: b.lock("a").acquire(timeout=math.nan),
        lambda b: b.lock("a").acquire(blocking=False, timeout=1),
        lambda b: b.lock("a").release(),
        lambda b: b.lock("a").extend(),
        lambda b: asyncio.run(b.lock("a").arelease()),
    ],
)
def test_misuse_says_what_to_do_and_leaves_nothing_behind(process, misuse) -> None:
    with pytest.raises(LockMisuse, match=r"give|acquire it first"):
        misuse(process)
    assert not process.held
    assert not process.inspect()


def test_extending_by_nothing_is_misuse_and_keeps_the_lease() -> None:
    backend = scripted()
    with backend.lock("a") as lease:
        for ttl in (0, -1, 1e16, math.inf, math.nan):
            with pytest.raises(LockMisuse):
                backend.lock("a").extend(ttl)
        lease.check()


def test_an_extension_moves_the_deadline_from_now() -> None:
    backend = scripted()
    lock = backend.lock("a", ttl=5, renew=False)
    with lock as lease:
        lock.extend(60)
        assert 59 < lease.deadline - time.monotonic() <= 60
        lock.extend(1)
        assert lease.remaining <= 1


def test_locked_sees_other_threads(process, other) -> None:
    lock = process.lock("a")
    assert not lock.locked()
    other.submit(lock.acquire).result(PATIENCE)
    assert lock.locked()
    assert not process.lock("b").locked()


def test_a_third_party_backend_is_named_by_its_path(settings) -> None:
    from locking import locks

    settings.LOCKS = {"mine": {"BACKEND": "tests.locking.scripted.ScriptedBackend", "TTL": 3}}
    assert isinstance(locks["mine"], ScriptedBackend)
    with locks["mine"].lock("a") as first, locks["mine"].lock("b") as second:
        assert second.token > first.token
    with pytest.raises(LockMisuse, match="there are: mine"):
        locks["redis"]
