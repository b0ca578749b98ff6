"""How a hold ends besides its release: with a transaction, a request, or the loss of the lease."""

import asyncio
import signal
from contextlib import nullcontext, suppress

import pytest
from asgiref.sync import sync_to_async
from celery.signals import task_postrun, task_prerun
from django.core.signals import request_finished, request_started
from django.db import transaction

from devservers.faults.waiting import WAIT_TIMEOUT
from locking import LockLost
from locking.jobs import tasks
from locking.lease import State
from tests.locking.calls import acquired
from tests.locking.scripted import unavailable

assert tasks  # connects the signals


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("outcome", ["commit", "rollback", "inner rollback"])
def test_lock_is_held_until_the_transaction_ends(backend, outcome: str) -> None:
    lock = backend.lock("a", until="commit")
    with transaction.atomic():
        with transaction.atomic():
            with lock:
                pass
            assert lock.lease is not None, "it was released with the block"
            if outcome == "inner rollback":
                transaction.set_rollback(True)
        assert bool(backend.inspect()) is (outcome != "inner rollback")
        if outcome == "rollback":
            transaction.set_rollback(True)
    assert not backend.inspect()
    assert lock.lease is None


@pytest.mark.parametrize(
    ("begin", "end"),
    [(request_started, request_finished), (task_prerun, task_postrun)],
    ids=["request", "task"],
)
def test_what_a_request_or_task_leaves_behind_is_released(backend, begin, end) -> None:
    inner, slots = backend.lock("inside"), backend.lock("slots", reentrant=False)
    with backend.lock("before"):
        begin.send(None)
        inner.acquire()
        inner.acquire()
        slots.acquire()
        backend.break_lock("slots")
        slots.acquire()  # its lease hides the lost one
        end.send(None)
        assert inner.lease is None
        assert [held.name for held in backend.inspect()] == ["before"]
        assert [name for name, _ in backend.held] == ["before"]


@pytest.mark.django_db(transaction=True)
def test_task_inside_a_transaction_leaves_its_lock_to_the_commit(backend) -> None:
    """As an eager Celery task does. The control: another lock is released."""
    with transaction.atomic():
        task_prerun.send(None)
        backend.lock("left", until="block").acquire()
        with backend.lock("a", until="commit"):
            pass
        task_postrun.send(None)
        assert [held.name for held in backend.inspect()] == ["a"]
    assert not backend.inspect()


@pytest.mark.parametrize("is_waiting", [True, False], ids=["at an await", "at the end"])
def test_block_is_cancelled_when_its_lease_is_lost(backend, is_waiting: bool) -> None:
    reached = []

    async def work() -> None:
        async with backend.lock("a", cancel_on_loss=True) as lease:
            backend.break_lock("a")
            lease.mark_lost()
            if is_waiting:
                await asyncio.sleep(WAIT_TIMEOUT)
                reached.append("the end of the block")

    async def main() -> int:
        with pytest.raises(LockLost):
            await work()
        await asyncio.sleep(0)
        return asyncio.current_task().cancelling()

    assert asyncio.run(main()) == 0, "the task stays cancelled"
    assert not reached


def test_loss_is_raised_also_if_the_store_is_silent_at_the_end(backend) -> None:
    """As after an outage: the lease ended, and the store does not reply to the release."""
    backend.backend.then("release", unavailable)
    with pytest.raises(LockLost), backend.lock("a") as lease:
        lease.mark_lost()
    assert lease.state is State.LOST


def test_released_lease_is_neither_lost_nor_held(backend) -> None:
    with backend.lock("a") as lease:
        pass
    with pytest.raises(LockLost):
        lease.check()
    lease.claim.deadline = 0.0
    assert not lease.lost


@pytest.mark.parametrize("is_at_the_end", [True, False])
def test_cancellation_from_outside_is_not_taken_for_a_loss(backend, is_at_the_end: bool) -> None:
    async def work() -> None:
        async with backend.lock("a", cancel_on_loss=True) as lease:
            task = asyncio.current_task()
            if not is_at_the_end:
                task.cancel()
            backend.break_lock("a")
            lease.mark_lost()
            with suppress(asyncio.CancelledError) if is_at_the_end else nullcontext():
                await asyncio.sleep(WAIT_TIMEOUT)
            task.get_loop().call_soon(task.cancel)

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(work())

    asyncio.run(main())
    assert not backend.held


@pytest.mark.parametrize("lease_is_lost", [False, True])
def test_interrupted_release_leaves_a_lease_that_is_not_held(backend, lease_is_lost: bool) -> None:
    """Whether the store freed the lock is not known."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    backend.backend.then("release", interrupt)
    lease = acquired(backend.lock("a"))
    if lease_is_lost:
        lease.claim.deadline = 0.0
    with pytest.raises(KeyboardInterrupt):
        lease.release()
    assert lease.state is (State.LOST if lease_is_lost else State.UNCONFIRMED)
    assert lease.lost is lease_is_lost
    assert not backend.renewer.leases
    with pytest.raises(LockLost):
        lease.check()


def test_signal_during_the_callback_of_a_loss_is_not_swallowed(backend) -> None:
    """A handler raises SystemExit, as that of a web server does; the holder noticed the loss."""

    def handle(*args: object) -> None:
        raise SystemExit

    previous = signal.signal(signal.SIGUSR1, handle)
    try:
        lock = backend.lock("a", on_lost=lambda lease: signal.raise_signal(signal.SIGUSR1))
        lock.acquire()
        backend.break_lock("a")
        with pytest.raises(SystemExit):
            lock.release()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert not backend.held


@pytest.mark.django_db(transaction=True)  # the signals close the connections of their thread
def test_requests_of_one_event_loop_leave_nothing_behind(backend) -> None:
    """Their signals are sent in one thread, and the first one ends after the second began."""

    async def request(name: str, began: asyncio.Event, goes_on: asyncio.Event) -> None:
        await sync_to_async(request_started.send)(None)
        await sync_to_async(backend.lock(name).acquire)()
        began.set()
        await goes_on.wait()
        await sync_to_async(request_finished.send)(None)
        assert name not in {held.name for held in backend.inspect()}

    async def main() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:  # which ends if one fails
            group.create_task(request("first", first, second))
            await first.wait()
            group.create_task(request("second", second, second))

    asyncio.run(main())
