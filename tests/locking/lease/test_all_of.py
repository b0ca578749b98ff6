"""Several locks at once: arguments, order, deadline, losses. The contract tests every backend."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost, LockMisuse, LockTimeout, LockUnavailable, lock, locks
from locking.claims import Claim, Grant
from locking.testing.calls import in_thread, within
from tests.locking.calls import acquired
from tests.locking.held_call import HeldCall
from tests.locking.scripted import scripted, waiters


@pytest.mark.parametrize("names", [[], "abc"])
def test_bad_names_are_refused(process, names: Any) -> None:
    with pytest.raises(LockMisuse, match="give a list of at least one name"):
        process.all_of(names)


@pytest.mark.django_db
def test_policy_lock_takes_several_names_in_their_order() -> None:
    with lock.all_of(["b", "c", "a", "b"], timeout=2) as leases:
        assert list(leases) == ["a", "b", "c"]
        times = [lease.granted_at for lease in leases.values()]
        assert times == sorted(times), "they were acquired in another order"
        assert {lease.epoch for lease in leases.values()} == {1}
    assert not [held for held in locks["redis"].inspect() if held.name in "abc"]


@pytest.mark.parametrize("is_guarded", [True, False])
def test_callers_that_name_the_locks_in_another_order(process, is_guarded: bool) -> None:
    """Both get them. The control: each holds one lock and waits for the other's."""
    both_began = threading.Barrier(2)

    def work(names: str) -> bool:
        if is_guarded:
            both_began.wait(WAIT_TIMEOUT)
            with process.all_of([*names], timeout=WAIT_TIMEOUT):
                return True
        with process.lock(names[0]):
            both_began.wait(WAIT_TIMEOUT)
            got = process.lock(names[1]).acquire(timeout=0.3)
            both_began.wait(WAIT_TIMEOUT)
            return bool(got)

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(work, ["ab", "ba"])] == [is_guarded] * 2


def test_one_deadline_bounds_all_waits(monkeypatch) -> None:
    backend, waits = scripted(), []
    held = acquired(backend.lock("b"))
    acquire = backend.backend.acquire

    def slow(claim: Claim, wait: float) -> Grant | None:
        waits.append(wait)
        began = time.monotonic()
        until(lambda: time.monotonic() > began + 0.05, "some time passing")
        return acquire(claim, wait)

    monkeypatch.setattr(backend.backend, "acquire", slow)
    with pytest.raises(LockTimeout, match=r"'b' was still held by another caller after 0\.2 s"):
        in_thread(backend.all_of(["b", "a"], timeout=0.2).__enter__)
    assert waits[1] <= waits[0] - 0.05
    held.release()
    assert not backend.inspect()


def test_loss_of_one_lease_is_a_loss_of_all() -> None:
    backend, lost = scripted(), []

    def work() -> None:
        with backend.all_of(["a", "b"], on_lost=lambda lease: lost.append(lease.name)) as leases:
            assert not leases.lost
            backend.break_lock("b")
            with pytest.raises(LockLost):
                leases["b"].extend(30)
            assert leases.lost
            leases.check()

    with pytest.raises(LockLost, match="'b'"):
        work()
    assert lost == ["b"]
    assert not backend.inspect()
    assert not backend.held


def test_lease_that_ends_during_the_wait_is_reported(backend) -> None:
    holder = backend.lock("b", ttl=30)
    holder.acquire()

    def attempt() -> None:
        with backend.all_of(["a", "b"], ttl=1.0, renew=False, timeout=WAIT_TIMEOUT):
            pytest.fail("the first lease ended before the second was granted")

    def release_late() -> None:
        until(lambda: waiters(backend.backend), "the wait after the first grant")
        until(lambda: "a" not in {held.name for held in backend.inspect()}, "its end")
        backend.break_lock("b")

    other = threading.Thread(target=release_late)
    other.start()
    with pytest.raises(LockLost, match="'a'"):
        in_thread(attempt)
    other.join()
    assert not backend.inspect()


@pytest.mark.parametrize("error", [LockUnavailable, asyncio.CancelledError])
def test_error_or_end_of_a_wait_leaves_nothing_held(error: type[BaseException], backend) -> None:
    backend.backend.then("acquire", lambda: None, Mock(side_effect=error))
    with pytest.raises(error), backend.all_of(["a", "b"]):
        pass
    assert not backend.inspect()
    assert not backend.held


@pytest.mark.parametrize("lost", ["a", "b"])
def test_task_is_cancelled_when_one_lease_is_lost(lost: str, backend) -> None:

    async def main() -> None:
        async with backend.all_of(["a", "b"], ttl=0.3, cancel_on_loss=True):
            backend.break_lock(lost)
            await asyncio.sleep(WAIT_TIMEOUT)

    with within(WAIT_TIMEOUT), pytest.raises(LockLost):
        asyncio.run(main())
    assert not backend.inspect()


@pytest.mark.parametrize("is_granted", [True, False])
def test_cancellation_during_one_release_leaves_no_other_lock_held(
    is_granted: bool, backend
) -> None:
    """At the end of the block, or after a wait without a grant; the task goes on."""
    backend.backend.then("release", request := HeldCall())
    held = backend.lock("c", ttl=60)
    names = ["a", "b"] if is_granted else ["a", "b", "c"]

    async def work() -> None:
        with pytest.raises(asyncio.CancelledError):
            async with backend.all_of(names, timeout=0.5):
                assert is_granted
        assert {name for name, _ in backend.held} == {"c"}

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.to_thread(request.wait_until_started)
        task.cancel()
        await asyncio.sleep(0)
        request.end()
        await task

    with held:
        asyncio.run(main())
        assert [one.name for one in backend.inspect()] == ["c"]
