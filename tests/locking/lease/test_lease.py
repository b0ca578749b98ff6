"""Locks and leases of any backend. The contract tests cover what the stores do."""

import asyncio
import gc
import math
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost, LockMisuse, LockTimeout, LockUnavailable, locks
from locking.handler import create
from locking.lease import State
from locking.testing.calls import in_thread
from tests.locking.calls import acquired
from tests.locking.scripted import PATH, ScriptedBackend, scripted, unavailable


def test_acquire_waits_for_the_timeout_of_the_lock(process) -> None:
    with process.lock("a"):
        assert in_thread(process.lock("a", timeout=0.01).acquire) is False


def test_with_statement_waits_for_the_timeout_of_the_backend() -> None:
    backend = scripted(TIMEOUT=0.01)
    with backend.lock("a"), pytest.raises(LockTimeout, match=r"0\.01 s"):
        in_thread(backend.lock("a").__enter__)


def test_unavailable_store_leaves_nothing_held() -> None:
    backend = scripted()
    backend.backend.then("acquire", unavailable)
    with pytest.raises(LockUnavailable):
        backend.lock("a").acquire()
    assert not backend.held


def test_new_thread_does_not_inherit_locks_of_an_ended_one() -> None:
    """Python assigns the ident of an ended thread to a later one."""
    backend = scripted()
    got: list[tuple[int, bool]] = []

    locks = []

    def take() -> None:
        lock = backend.lock("a", ttl=60, renew=False)
        locks.append(lock)  # a dropped one would be released
        got.append((threading.get_ident(), lock.acquire(blocking=False)))

    for _ in range(500):
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
        if len(got) > 1 and got[-1][0] == got[0][0]:
            break
    else:
        pytest.fail("no ident was used again: the test proves nothing")
    assert [took for _, took in got] == [True] + [False] * (len(got) - 1)


def test_acquire_after_a_loss_grants_anew_and_the_old_block_raises() -> None:
    """A forgotten lease that is lost must not stop the thread that works next."""
    backend = scripted()
    lock = backend.lock("a")
    with pytest.raises(LockLost), lock as old:  # noqa: PT012 - the end of the block raises
        backend.break_lock("a")
        with lock as new:
            assert new.token > old.token
            assert lock.lease is new
            assert old.lost
        assert lock.lease is old, "its own release has not come yet"
    assert lock.lease is None
    assert lock.acquire(blocking=False)
    lock.release()


def test_leases_of_one_holder_may_be_released_in_any_order() -> None:
    """Such as two slots of a semaphore; `none` grants a second lease without one."""
    backend = create("none", {"BACKEND": "locking.backends.none.NoneBackend"})
    slots = backend.lock("a", reentrant=False)
    first, second, third = (acquired(slots) for _ in range(3))
    assert first.is_unreleased
    for lease in (second, first, third):
        lease.release()
        assert not lease.is_unreleased
    assert slots.lease is None
    assert not backend.held


def test_loss_of_a_lease_that_a_later_one_hides_is_reported() -> None:
    backend, lost = scripted(), []
    first = acquired(backend.lock("a", on_lost=lost.append, reentrant=False))
    backend.break_lock("a")
    second = acquired(backend.lock("a", reentrant=False))
    with pytest.raises(LockLost):
        first.renew()
    assert lost == [first]
    with pytest.raises(LockLost):
        first.release()
    second.release()
    assert not backend.held


def test_lease_ends_after_max_hold_and_the_lock_is_free() -> None:
    backend = scripted()
    lost = threading.Event()
    lock = backend.lock("a", ttl=60, max_hold=0.2, on_lost=lambda lease: lost.set())
    with pytest.raises(LockLost), lock as lease:  # noqa: PT012 - the end of the block raises
        assert lease.remaining <= 0.2
        assert lost.wait(WAIT_TIMEOUT)
        assert lease.lost
        until(lambda: not backend.inspect(), "the release in the store")


def test_max_hold_ends_a_lock_without_a_lease(process) -> None:
    with pytest.raises(LockLost), process.lock("a", max_hold=0.2):
        assert in_thread(process.lock("a").acquire, timeout=WAIT_TIMEOUT)


def test_lease_outlives_the_lock_object_that_acquired_it() -> None:
    store = scripted()
    assert store.lock("a").acquire()
    gc.collect()
    assert store.lock("a").owned()
    store.lock("a").release()
    assert not store.inspect()


def test_try_acquire_returns_a_lease_or_none() -> None:
    store = scripted()
    lease = store.lock("a").try_acquire()
    assert lease is not None
    assert in_thread(store.lock("a").try_acquire) is None
    lease.release()
    assert lease.state is State.RELEASED
    assert not store.lock("a").locked()


def test_lock_of_an_ended_thread_is_released(process) -> None:
    for backend in (process, scripted()):
        kept = backend.lock("a", ttl=60)
        in_thread(kept.acquire)
        until(lambda backend=backend: not backend.inspect(), "the release")
        assert not backend.held


@pytest.mark.parametrize("fault", ["lost", "unavailable", "already released"])
def test_error_of_the_block_hides_the_error_of_the_release(fault: str) -> None:
    backend = scripted()
    lock = backend.lock("a")

    def inject() -> None:
        if fault == "lost":
            backend.break_lock("a")
        elif fault == "unavailable":
            backend.backend.then("release", unavailable)
        else:
            lock.release()

    async def in_a_task() -> None:
        async with lock:
            inject()
            raise KeyError("own")

    def in_a_thread() -> None:
        with lock:
            inject()
            raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        in_a_thread()
    backend.break_lock("a")
    with pytest.raises(KeyError, match="own"):
        asyncio.run(in_a_task())
    assert not backend.held


def test_expired_lease_is_lost_even_without_a_new_holder() -> None:
    backend = scripted()
    lock = backend.lock("a", ttl=0.02, renew=False)
    lease = acquired(lock)
    until(lambda: lease.lost, "the lease ending")
    assert lease.remaining == 0
    for call in (lease.check, lock.extend, lock.release):
        with pytest.raises(LockLost):
            call()
    assert lock.lease is None


def test_release_after_the_deadline_raises_lock_lost() -> None:
    backend = scripted()
    lock = backend.lock("a", renew=False)
    lock.acquire()
    lock.lease.claim.deadline = time.monotonic()
    with pytest.raises(LockLost, match="no longer held"):
        lock.release()
    assert not backend.inspect(), "the lock was not released in the store"


def test_on_lost_runs_once_and_its_error_is_logged(caplog) -> None:
    backend = scripted()
    reported = []

    def on_lost(lease) -> None:
        reported.append(lease)
        raise ValueError("from the callback")

    lock = backend.lock("a", on_lost=on_lost)
    lease = acquired(lock)
    backend.break_lock("a")
    for call in (lock.extend, lease.check, lock.release):
        with pytest.raises(LockLost):
            call()
        assert lease.lost
    assert reported == [lease]
    assert "on_lost failed" in caplog.text


def test_threads_that_notice_a_loss_together_report_it_once() -> None:
    backend = scripted()
    reported = []
    lock = backend.lock("a", on_lost=reported.append)
    lock.acquire()
    lease, start = lock.lease, threading.Barrier(8)

    def notice() -> None:
        start.wait(WAIT_TIMEOUT)
        lease.mark_lost()

    with ThreadPoolExecutor(8) as pool:
        for found in [pool.submit(notice) for _ in range(8)]:
            found.result(WAIT_TIMEOUT)
    until(lambda: reported, "the callback in its thread")
    assert reported == [lease]


def test_log_lines_contain_name_owner_and_token(caplog) -> None:
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


def test_owner_is_readable_and_unguessable(process) -> None:
    owners = set()
    for _ in range(100):
        with process.lock("a") as lease:
            owners.add(lease.owner)
    assert len(owners) == 100
    host, pid, thread, secret = owners.pop().split(":")
    assert host
    assert (int(pid), int(thread, 16)) == (os.getpid(), threading.get_ident())
    assert len(secret) >= 16


def test_two_threads_may_discard_a_lease_at_once() -> None:
    """Such as the watchdog and the thread that releases for an ended task."""

    class Contended(dict):
        def get(self, key: object) -> object:
            return self.pop(key)  # the other thread removes it right after the check

    backend = scripted()
    with backend.lock("a", renew=False) as lease:
        backend.held, held = Contended(backend.held), backend.held
        backend.discard(lease)
        assert not backend.held
        backend.held = held


@pytest.mark.parametrize(
    "misuse",
    [
        lambda b: b.lock("x" * 201),
        lambda b: b.lock(""),
        lambda b: b.lock("line\nbreak"),
        lambda b: b.lock("nul\0"),
        lambda b: b.lock(7),
        lambda b: b.lock("a", ttl=math.nan),
        lambda b: b.lock("a", ttl=0),
        lambda b: b.lock("a", ttl=1e16),
        lambda b: b.lock("a", ttl="6"),
        lambda b: b.lock("a", timeout="2"),
        lambda b: b.lock("a", max_hold="9"),
        lambda b: b.lock("a").acquire(timeout="1"),
        lambda b: b.lock("a", timeout=-0.1),
        lambda b: b.lock("a").acquire(timeout=-1),
        lambda b: b.lock("a").acquire(blocking=False, timeout=1),
        lambda b: b.lock("a").release(),
        lambda b: b.lock("a").extend(),
        lambda b: asyncio.run(b.lock("a").arelease()),
    ],
)
def test_misuse_explains_itself_and_leaves_nothing_held(process, misuse) -> None:
    with pytest.raises(LockMisuse, match=r"give|acquire it first"):
        misuse(process)
    assert not process.held
    assert not process.inspect()


def test_extension_by_an_invalid_ttl_keeps_the_lease() -> None:
    backend = scripted()
    with backend.lock("a") as lease:
        for ttl in (0, -1, 1e16, math.inf, math.nan):
            with pytest.raises(LockMisuse):
                backend.lock("a").extend(ttl)
        lease.check()


def test_extension_sets_the_deadline_from_now_on() -> None:
    backend = scripted()
    lock = backend.lock("a", ttl=5, renew=False)
    with lock as lease:
        lock.extend(60)
        assert 59 < lease.deadline - time.monotonic() <= 60
        lock.extend(1)
        assert lease.remaining <= 1


def test_third_party_backend_is_named_by_its_path(settings) -> None:
    settings.LOCKS = {"mine": {"BACKEND": PATH, "TTL": 3}}
    assert isinstance(locks["mine"].backend, ScriptedBackend)
    with locks["mine"].lock("a") as first, locks["mine"].lock("b") as second:
        assert second.token > first.token
    with pytest.raises(LockMisuse, match=r"'redis'\. Choose from mine"):
        locks["redis"]


def test_release_by_another_caller_or_twice_is_misuse(process) -> None:
    lock = process.lock("a")
    lock.acquire()
    with pytest.raises(LockMisuse):
        in_thread(lock.release)
    lock.lease.check()
    lock.release()
    with pytest.raises(LockMisuse):
        lock.release()
