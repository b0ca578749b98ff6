"""The thread that renews leases, on a scripted backend."""

import math
import threading
import time
from contextlib import suppress
from itertools import pairwise

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost, LockUnavailable
from locking.claims import Claim
from locking.lease import Lease, LockStore
from locking.testing.calls import passes_in_child
from tests.locking.calls import acquired
from tests.locking.held_call import HeldCall
from tests.locking.scripted import scripted, unavailable

LONG = 60
"""Seconds of a lease that does not end although this process may be stopped for a while."""


def renew_now(*leases: Lease) -> None:
    """Let the watchdog renew leases at once, as after a third of their ttl."""
    for lease in leases:
        lease.renew_at = 0.0
        lease.table.renewer.reschedule(lease)


def extensions(backend: LockStore) -> int:
    return len(backend.backend.times("extend"))


def test_lease_is_renewed_every_third_of_its_ttl(backend) -> None:
    with backend.lock("a", ttl=4.5) as lease:
        first_end = lease.deadline
        until(lambda: extensions(backend) >= 2, "two renewals")
        assert not lease.lost
    assert lease.deadline > first_end
    renewals = [lease.granted_at, *backend.backend.times("extend")]
    gaps = [after - before for before, after in pairwise(renewals)]
    assert min(gaps) >= 4.5 / 3 - 0.001


def test_renewal_is_repeated_until_the_store_replies(backend) -> None:
    backend.backend.then("extend", *[unavailable] * 3)
    with backend.lock("a", ttl=6) as lease:
        first_end = lease.deadline
        renew_now(lease)
        until(lambda: lease.deadline > first_end, "the fourth attempt")


def test_extension_that_failed_does_not_put_off_the_next_renewal(backend) -> None:
    """The grant still ends by the earlier ttl."""
    with backend.lock("a", ttl=4.5) as lease:
        first_end = lease.deadline
        backend.backend.then("extend", *[unavailable] * 2)
        with pytest.raises(LockUnavailable):
            lease.extend(600)
        until(lambda: lease.deadline > first_end, "the renewal")
        lease.check()


def test_lease_without_a_reply_is_lost_at_its_deadline(backend) -> None:
    backend.backend.then("extend", *[unavailable] * 1000)
    lost = []
    lock = backend.lock("a", ttl=1.5, on_lost=lambda lease: lost.append(time.monotonic()))
    lease = acquired(lock)
    until(lambda: lost, "on_lost")
    assert lease.lost
    assert lost[0] >= lease.deadline
    asked = extensions(backend)
    with pytest.raises(LockLost):
        lock.release()
    assert len(lost) == 1
    assert extensions(backend) == asked, "a lost lease was renewed again"


def test_lease_is_lost_at_once_if_the_store_says_so(backend) -> None:
    """And the callback runs in a thread of its own."""
    called: list[tuple[Lease, threading.Thread]] = []

    def on_lost(lease: Lease) -> None:
        called.append((lease, threading.current_thread()))

    lock = backend.lock("a", ttl=LONG, on_lost=on_lost)
    lease = acquired(lock)
    backend.break_lock("a")
    renew_now(lease)
    until(lambda: called, "on_lost")
    assert lease.lost
    with pytest.raises(LockLost):
        lock.release()
    ((reported, thread),) = called
    assert reported is lease
    assert thread not in {backend.renewer.thread, threading.current_thread()}


@pytest.mark.parametrize("place", ["callback", "store"])
@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_error_does_not_end_the_renewals(place: str, error: type[BaseException], backend) -> None:
    """Such as `sys.exit`, which ends a thread silently."""
    called = threading.Event()

    def fail(lease: object = None) -> None:
        called.set()
        raise error

    with backend.lock("kept", ttl=LONG) as kept:
        lock = backend.lock("lost", ttl=LONG, on_lost=fail)
        lease, thread = acquired(lock), backend.renewer.thread
        if place == "store":
            backend.backend.then("extend", fail)
        else:
            backend.break_lock("lost")
        renew_now(lease)
        assert called.wait(WAIT_TIMEOUT)
        before = extensions(backend)
        renew_now(kept)
        until(lambda: extensions(backend) > before, "another renewal")
        assert backend.renewer.thread is thread
    with suppress(LockLost):
        lock.release()


def test_release_during_a_renewal_is_not_a_loss(backend) -> None:
    backend.backend.then("extend", request := HeldCall())
    lost = []
    lock = backend.lock("a", ttl=LONG, on_lost=lost.append)
    renew_now(acquired(lock))
    request.wait_until_started()
    lock.release()
    request.end()
    with backend.lock("b", ttl=LONG) as after:  # its renewal shows that the thread goes on
        renew_now(after)
        until(lambda: extensions(backend) > 1, "the next renewal")
    assert not lost


def test_late_reply_delays_no_other_renewal(monkeypatch: pytest.MonkeyPatch, backend) -> None:
    backend.backend.then("extend", *[request := HeldCall()] * 4)
    first, *others = (backend.lock(name, ttl=LONG) for name in "abcd")
    renew_now(acquired(first))
    until(lambda: backend.renewer.unanswered, "a late reply")
    monkeypatch.setattr("locking.lease.watchdog.PATIENCE", 2 * WAIT_TIMEOUT)
    renew_now(*map(acquired, others))
    until(lambda: request.count == 4, "the requests of the others")
    request.end()
    for lock in (first, *others):
        lock.release()


def test_shorter_extension_reschedules_the_renewal(
    monkeypatch: pytest.MonkeyPatch, backend
) -> None:
    """The thread sleeps until a renewal in 20 s when an earlier one becomes due."""
    monkeypatch.setattr("locking.lease.watchdog.IDLE", 60.0)  # else it may look in between
    lock = backend.lock("a", ttl=60)
    with lock as lease:
        until(
            lambda: lease.table.renewer.next_renewal == lease.renew_at,
            "the thread sleeping until then",
        )
        lock.extend(4.5)
        until(lambda: extensions(backend) > 1, "a renewal by the new ttl")
        lease.check()


def test_failed_start_of_the_thread_holds_nothing_and_is_repeated(
    monkeypatch: pytest.MonkeyPatch, backend
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            backend.lock("a").acquire()
    assert not backend.held
    assert not backend.inspect()
    with backend.lock("a", ttl=LONG) as lease:
        renew_now(lease)
        until(lambda: extensions(backend), "a renewal")


def test_renewal_in_progress_does_not_undo_a_longer_extension(backend) -> None:
    backend.backend.then("extend", request := HeldCall())
    with backend.lock("a", ttl=LONG) as lease:
        renew_now(lease)
        request.wait_until_started()
        backend.lock("a").extend(600)
        request.end()  # the store executes it after the extension
        until(lambda: extensions(backend) > 2, "another renewal, by the new ttl")
        until(lambda: backend.inspect()[0].expires_in > 500, "the longer lease")
        until(lambda: lease.remaining > 500, "the holder knowing of it")


def test_renewal_without_a_reply_delays_no_other_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the same backend nor of another one, and its own lease is lost in time."""
    backend, request, lost = scripted(), HeldCall(), []
    extend = backend.backend.extend

    def answer_healthy(claim: Claim, token: int, ttl: float) -> float:
        if claim.name.startswith("stuck"):  # each in a thread of its own, so in any order
            request()
        return extend(claim, token, ttl)

    monkeypatch.setattr(backend.backend, "extend", answer_healthy)
    stuck = [backend.lock(f"stuck{n}", ttl=1.5, on_lost=lost.append) for n in range(3)]
    healthy = [backend.lock(f"healthy{n}", ttl=LONG) for n in range(3)]
    healthy.append(scripted().lock("elsewhere", ttl=LONG))
    leases = [acquired(lock) for lock in (*stuck, *healthy)]
    try:
        ends = [(lease, lease.deadline) for lease in leases[3:]]
        renew_now(*leases)
        until(lambda: all(lease.deadline > end for lease, end in ends), "the healthy renewals")
        until(lambda: len(lost) == 3, "the loss of the leases without a renewal")
    finally:
        request.end()
        for lock in healthy:
            lock.release()
        for lock in stuck:
            with pytest.raises(LockLost):
                lock.release()


def test_one_thread_renews_all_leases_of_a_backend_and_ends_without_any(
    monkeypatch: pytest.MonkeyPatch, backend
) -> None:
    monkeypatch.setattr("locking.lease.watchdog.IDLE", 0.05)
    with backend.lock("a", ttl=LONG) as one, backend.lock("b", ttl=LONG) as two:
        renew_now(one, two)
        until(lambda: extensions(backend) > 1, "renewals")
        assert len(backend.renewer.leases) == 2
        thread = backend.renewer.thread
    until(lambda: not thread.is_alive(), "the thread ending")
    with backend.lock("a", ttl=LONG) as one:
        before = extensions(backend)
        renew_now(one)
        until(lambda: extensions(backend) > before, "a renewal by a new thread")


def test_lease_that_arrives_as_the_thread_ends_gets_one_thread(
    monkeypatch: pytest.MonkeyPatch, backend
) -> None:
    monkeypatch.setattr("locking.lease.watchdog.IDLE", 0.05)
    renewer = backend.renewer
    with backend.lock("a", ttl=60) as lease:
        thread = renewer.thread
        monkeypatch.setattr(renewer.helper, "end", lambda: renewer.add(lease))
        renewer.remove(lease)
        until(lambda: not thread.is_alive(), "the first thread ending")
        assert renewer.thread.is_alive()


def test_leases_that_do_not_expire_are_not_renewed(process) -> None:
    with process.lock("a", ttl=0.1) as lease:
        assert lease.renew_at == math.inf


def test_forked_child_renews_only_its_own_leases(backend) -> None:

    def renews_only_its_own() -> bool:
        backend.backend.calls.clear()
        left_alone = not backend.renewer.leases and not backend.renewer.thread
        with backend.lock("b", ttl=LONG) as lease:
            renew_now(lease)
            until(lambda: extensions(backend), "a renewal in the child")
            return left_alone and not lease.lost

    with backend.lock("a", ttl=LONG) as lease:
        assert passes_in_child(renews_only_its_own)
        before = extensions(backend)
        renew_now(lease)
        until(lambda: extensions(backend) > before, "a renewal in the parent")
