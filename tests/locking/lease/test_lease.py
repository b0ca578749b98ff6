"""Locks and leases of any backend. The contract tests cover what the stores do."""

import asyncio
import math
import os
import threading
import time

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost, LockMisuse
from locking.handler import create
from locking.lease import State
from locking.testing.calls import in_thread, passes_in_child
from tests.locking.calls import acquired
from tests.locking.scripted import scripted, unavailable


def test_new_thread_does_not_inherit_locks_of_an_ended_one(backend) -> None:
    """Python assigns the ident of an ended thread to a later one."""
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
        pytest.fail("no ident was used again: the test proves nothing")
    assert [took for _, took in got] == [True] + [False] * (len(got) - 1)


def test_acquire_after_a_loss_grants_anew_and_the_old_block_raises(backend) -> None:
    """A forgotten lease that is lost must not stop the thread that works next."""
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
    for call in (first.renew, first.release):
        with pytest.raises(LockLost):
            call()
        assert lost == [first]
    second.release()
    assert not backend.held


@pytest.mark.parametrize("expires", [True, False])
def test_lease_ends_after_max_hold_and_the_lock_is_free(process, expires: bool) -> None:
    backend = scripted() if expires else process
    lost = threading.Event()
    lock = backend.lock("a", ttl=60, max_hold=0.2, on_lost=lambda lease: lost.set())
    with pytest.raises(LockLost), lock as lease:  # noqa: PT012 - the end of the block raises
        assert lease.remaining <= 0.2
        assert lost.wait(WAIT_TIMEOUT)
        assert lease.lost
        until(lambda: not backend.inspect(), "the release in the store")


def test_try_acquire_returns_a_lease_or_none(backend) -> None:
    lease = backend.lock("a").try_acquire()
    assert lease is not None
    assert in_thread(backend.lock("a").try_acquire) is None
    lease.release()
    assert lease.state is State.RELEASED
    assert not backend.lock("a").locked()


def test_lock_of_an_ended_thread_is_released(process) -> None:
    for backend in (process, scripted()):
        kept = backend.lock("a", ttl=60)
        in_thread(kept.acquire)
        until(lambda backend=backend: not backend.inspect(), "the release")
        assert not backend.held


@pytest.mark.parametrize("fault", ["lost", "unavailable", "already released"])
def test_error_of_the_block_hides_the_error_of_the_release(fault: str, backend) -> None:
    lock = backend.lock("a")

    def work() -> None:
        with lock:
            if fault == "lost":
                backend.break_lock("a")
            elif fault == "unavailable":
                backend.backend.then("release", unavailable)
            else:
                lock.release()
            raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        work()
    assert not backend.held


def test_lease_is_lost_at_its_deadline_even_without_a_new_holder(backend) -> None:
    lock = backend.lock("a", renew=False)
    lease = acquired(lock)
    lease.claim.deadline = time.monotonic()
    assert (lease.lost, lease.remaining) == (True, 0)
    for call in (lease.check, lock.extend, lock.release):
        with pytest.raises(LockLost):
            call()
    assert lock.lease is None
    assert not backend.inspect(), "the lock was not released in the store"


def test_forked_child_does_not_believe_in_its_parents_lease(process) -> None:
    """The parent may release it at any time, and this child would never learn of it."""
    with process.lock("a") as lease:
        assert passes_in_child(lambda: lease.lost)
        lease.check()


def test_on_lost_runs_once_and_its_error_is_logged(caplog, backend) -> None:
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
        lambda b: b.lock("a", until="request"),
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


def test_extension_sets_the_deadline_from_now_on() -> None:
    lock = scripted().lock("a", ttl=60, renew=False)
    with lock as lease:
        lock.extend(600)
        assert 400 < lease.deadline - time.monotonic() <= 600
        lock.extend(30)
        assert lease.remaining <= 30
        for ttl in (0, -1, 1e16, math.inf, math.nan):
            with pytest.raises(LockMisuse):
                lock.extend(ttl)
        lock.extend()
        assert 30 < lease.remaining <= 60
