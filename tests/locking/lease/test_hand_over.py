"""Handing a lease over: the giver's side, tickets, the policy's lock. The contract tests stores."""

import asyncio
import logging
from contextlib import suppress
from unittest.mock import patch

import pytest
from django.db import transaction

from devservers.faults.waiting import until
from locking import LockLost, LockMisuse, LockUnavailable, lock, locks
from locking.handler import begin_work, end_work
from locking.lease import TakenOver
from tests.locking.backends.memory_store import MemoryBackend
from tests.locking.calls import acquired
from tests.locking.held_call import HeldCall
from tests.locking.scripted import scripted, unavailable


def test_giver_loses_the_lease_without_a_callback() -> None:
    backend, lost = scripted(), []
    with backend.lock("a", on_lost=lost.append) as lease:
        lease.hand_over()
        assert lease.lost
        assert [held.count for held in backend.inspect()] == [0]
        assert lease not in lease.table.renewer.leases
    assert not lost
    assert not backend.held
    assert not backend.backend.times("release")


def test_holder_in_the_same_thread_continues_inside_the_block(backend) -> None:
    """As an eager task does."""
    with backend.lock("a") as lease:
        with TakenOver(backend, lease.hand_over()) as taken:
            assert taken.token > lease.token
            with backend.lock("a") as again:
                assert again is taken
        assert not backend.inspect()
    assert not backend.held


def test_task_that_is_cancelled_while_it_takes_over_leaves_no_grant(backend) -> None:
    with backend.lock("a", ttl=600) as lease:
        ticket = lease.hand_over()
    backend.backend.then("take_over", request := HeldCall())

    async def main() -> None:
        taking = asyncio.create_task(backend.take_over(ticket).aacquire())
        await asyncio.to_thread(request.wait_until_started)
        taking.cancel()
        request.end()
        with pytest.raises(asyncio.CancelledError):
            await taking

    asyncio.run(main())
    until(lambda: not backend.inspect(), "the release")
    assert not backend.held


def test_take_over_without_a_reply_is_repeated_by_its_caller(backend) -> None:
    with backend.lock("a") as lease:
        ticket = lease.hand_over()
    taken, other = (backend.take_over(ticket) for _ in range(2))
    store = backend.backend

    def without_reply(*asked: object) -> None:
        MemoryBackend.take_over(store, *asked)
        raise LockUnavailable

    with patch.object(store, "take_over", without_reply), pytest.raises(LockUnavailable):
        taken.acquire()
    with pytest.raises(LockLost):
        other.acquire()
    with taken as again:
        assert again.owner in taken.holder_names()
    assert not backend.inspect()


@pytest.mark.parametrize(
    ("fault", "error"),
    [("entered again", LockMisuse), ("no reply", LockUnavailable), ("lost", LockLost)],
)
def test_lease_that_is_not_handed_over_stays_with_its_holder(
    fault: str, error: type, backend
) -> None:
    held = backend.lock("a")
    lease = acquired(held)
    if fault == "entered again":
        held.acquire()
    elif fault == "no reply":
        backend.backend.then("set_depth", unavailable)
    else:
        backend.break_lock("a")
    with pytest.raises(error):
        lease.hand_over()
    assert lease.lost == (fault == "lost")
    assert fault == "lost" or lease in lease.table.renewer.leases
    while lease.is_unreleased:
        with suppress(LockLost):
            held.release()
    assert not backend.inspect()


PART = {"backend": "redis", "token": 1, "policy": [1, ""]}


@pytest.mark.parametrize("ticket", [None, "t", {}, {"backend": "redis", "name": "a"}, PART])
def test_other_values_are_no_tickets(ticket) -> None:
    with pytest.raises(LockMisuse, match="Invalid ticket"):
        lock.take_over(ticket)


@pytest.mark.django_db(transaction=True)
class TestPolicy:
    def test_fence_and_options_are_continued(self) -> None:
        with lock("hand-over:1", timeout=5, ttl=60) as lease:
            ticket = lease.hand_over()
        assert lease.epoch
        with lock.take_over(ticket) as taken:
            assert (taken.epoch, taken.mode) == (lease.epoch, lease.mode)
            assert taken.fence > lease.fence
            assert taken.claim.ttl == 60
            with lock("hand-over:1") as again:
                assert again is taken
        with pytest.raises(LockLost), lock.take_over(ticket):
            pass

    def test_request_that_handed_over_leaves_nothing_behind(self, caplog) -> None:
        begin_work()
        one = lock("hand-over:2")
        one.acquire()
        ticket = one.lease.hand_over()
        with caplog.at_level(logging.WARNING):
            end_work()
        assert "left it behind" not in caplog.text
        assert not [held for held in locks["redis"].held if held[0] == "hand-over:2"]
        with lock.take_over(ticket):
            pass

    def test_hand_over_after_the_commit(self) -> None:
        tickets = []
        one = locks["redis"].lock("hand-over:3", timeout=5, until="commit")
        with transaction.atomic(), one as lease:
            transaction.on_commit(lambda: tickets.append(lease.hand_over()))
        with lock.take_over(tickets[0]) as taken:
            assert taken.token > lease.token
