"""Releases without a reply are repeated by one thread, which ends when none is left."""

import threading
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from devservers.faults.waiting import until
from locking import LockUnavailable
from locking.backends.pending_releases import PendingReleases
from locking.testing.calls import passes_in_child

TTL = 60.0


def failing(times: float, threads: list[int]) -> Callable[[], None]:
    """Return a release that has no reply for the first `times` calls, and records its thread."""
    numbers = count(1)

    def release() -> None:
        threads.append(threading.get_ident())
        if next(numbers) <= times:
            raise LockUnavailable

    return release


def outage(pending: PendingReleases) -> set[int]:
    """Add releases while the store does not respond, let it respond; return their threads."""
    failed, answered, threads = list[int](), list[int](), set[int]()
    store_responds = threading.Event()

    def release(number: int) -> None:
        threads.add(threading.get_ident())
        if not store_responds.is_set():
            failed.append(number)
            raise LockUnavailable
        answered.append(number)

    for number in range(20):
        pending.add(partial(release, number), TTL)
    until(lambda: len(failed) > 5)
    store_responds.set()
    until(lambda: pending.is_idle)
    assert sorted(answered) == [*range(20)]
    return threads


def test_one_thread_repeats_all_releases() -> None:
    """A long outage adds withdrawals of acquires that never held the lock."""
    pending = PendingReleases()
    for _ in range(2):  # the first thread has ended
        assert len(outage(pending)) == 1


def test_release_is_not_repeated_after_its_ttl() -> None:
    threads: list[int] = []
    pending = PendingReleases()
    pending.add(failing(float("inf"), threads), 0.2)
    until(lambda: pending.is_idle)
    assert threads


@pytest.mark.parametrize("error", [LockUnavailable, ZeroDivisionError])
def test_failing_release_does_not_stop_the_others(error: type[Exception]) -> None:
    def fail() -> None:
        raise error

    threads: list[int] = []
    pending = PendingReleases()
    pending.add(fail, TTL)
    pending.add(failing(1, threads), TTL)
    until(lambda: len(threads) == 2)
    pending.reset()


def test_forked_child_leaves_the_releases_to_its_parent() -> None:
    reply, calls = threading.Event(), list[str]()
    pending = PendingReleases()

    def release() -> None:
        calls.append("parent")
        if not reply.is_set():
            raise LockUnavailable

    def child() -> bool:
        calls.clear()
        pending.add(lambda: calls.append("child"), TTL)
        until(lambda: pending.is_idle)
        return calls == ["child"]

    pending.add(release, TTL)
    assert passes_in_child(child)
    assert not pending.is_idle
    reply.set()
    until(lambda: pending.is_idle)
