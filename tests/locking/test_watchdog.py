"""The thread that renews, on a backend that does what a script says."""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise

import pytest

from loadtest.faults.waiting import until
from locking import LockLost, LockUnavailable
from locking.watchdog import Watchdog, watchdog
from tests.locking.scripted import PATIENCE, scripted, silent

TTL = 1.2
"""Seconds of a lease that must outlive a slow machine: a renewal may come 0.8 s late."""


@pytest.fixture(autouse=True)
def _only_its_own_leases() -> None:
    """Other tests leave locks held on purpose."""
    watchdog.clear()


def watchdogs() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "watchdog"]


def test_a_lease_is_renewed_every_third_of_its_ttl() -> None:
    backend = scripted()
    with backend.lock("a", ttl=TTL) as lease:
        first_end = lease.deadline
        until(lambda: len(backend.times("extend")) >= 3, "three renewals")
        assert not lease.lost
    assert lease.deadline > first_end
    renewals = [lease.granted_at, *backend.times("extend")]
    gaps = [after - before for before, after in pairwise(renewals)]
    assert min(gaps) >= TTL / 3 - 0.001
    assert sorted(gaps)[len(gaps) // 2] < TTL * 2 / 3


def test_a_lease_outlives_its_ttl_while_it_is_renewed() -> None:
    backend = scripted()
    with backend.lock("a", ttl=TTL) as lease:
        first_end = lease.deadline
        until(lambda: time.monotonic() > first_end + TTL / 3, "the first lease passing")
        lease.check()


def test_without_renewal_the_lease_ends() -> None:
    backend = scripted()
    lock = backend.lock("a", ttl=0.03, renew=False)
    lock.acquire()
    lease = lock.lease
    until(lambda: lease.lost, "the lease ending")
    assert not backend.times("extend")
    with pytest.raises(LockLost):
        lock.release()


def test_a_silent_store_is_asked_again_until_it_answers() -> None:
    backend = scripted()
    backend.then("extend", *[silent] * 3)
    told = []
    with backend.lock("a", ttl=TTL, on_lost=told.append) as lease:
        first_end = lease.deadline
        until(lambda: time.monotonic() > first_end, "the first lease passing")
        lease.check()
    asked = backend.times("extend")
    assert asked[3] - asked[0] < TTL * 2 / 3, "the retries come faster than renewals"
    assert not told


def test_an_error_of_the_backends_own_does_not_stop_the_thread(caplog) -> None:
    backend = scripted()

    def crash() -> None:
        raise ZeroDivisionError

    backend.then("extend", crash)
    with backend.lock("a", ttl=TTL) as lease:
        until(lambda: len(backend.times("extend")) > 2, "the next renewals")
        lease.check()
    assert "ZeroDivisionError" in caplog.text


def test_silence_until_the_deadline_is_a_loss_told_once() -> None:
    backend = scripted()
    backend.then("extend", *[silent] * 1000)
    told = []
    lock = backend.lock("a", ttl=TTL, on_lost=lambda lease: told.append(time.monotonic()))
    lock.acquire()
    lease = lock.lease
    until(lambda: told, "the holder being told")
    assert lease.lost
    assert 0 <= told[0] - lease.deadline < TTL
    asked = len(backend.times("extend"))
    with pytest.raises(LockLost):
        lock.release()
    assert len(told) == 1
    assert asked > 5, "it did not retry until the deadline"
    assert len(backend.times("extend")) == asked, "a lost lease is not asked for again"


def test_the_stores_no_is_a_loss_at_once() -> None:
    backend = scripted()
    told = []
    lock = backend.lock("a", ttl=TTL, on_lost=told.append)
    lock.acquire()
    lease = lock.lease
    backend.break_lock("a")
    until(lambda: lease.lost, "the loss showing")
    assert time.monotonic() < lease.deadline
    with pytest.raises(LockLost):
        lock.release()
    assert told == [lease]


def test_a_release_during_a_renewal_is_no_loss() -> None:
    backend = scripted()
    asked, answer = threading.Event(), threading.Event()
    backend.then("extend", lambda: (asked.set(), answer.wait(PATIENCE)))
    told = []
    lock = backend.lock("a", ttl=TTL, on_lost=told.append)
    lock.acquire()
    assert asked.wait(PATIENCE)
    lock.release()
    answer.set()
    with backend.lock("b", ttl=TTL) as after:  # its renewal shows that the thread got on
        until(lambda: after.renew_at > after.granted_at + TTL / 2, "the next renewal")
    assert not told


def test_a_shorter_extension_brings_its_renewal_forward() -> None:
    """The thread sleeps until a renewal in twenty seconds when the next is due at once."""
    backend = scripted()
    lock = backend.lock("a", ttl=60)
    with lock as lease:
        until(lambda: watchdog._next == lease.renew_at, "the thread sleeping until then")
        lock.extend(TTL)
        until(lambda: len(backend.times("extend")) > 2, "renewals by the new ttl")
        lease.check()


def test_leases_added_while_the_thread_counts_are_not_forgotten() -> None:
    """The thread looks at its list, a lease joins, the thread goes to sleep for ever."""
    dog = Watchdog()
    backend = scripted()
    lock = backend.lock("a", ttl=0.9, renew=False)
    lock.acquire()

    class Leases(set):
        def copy(self):
            seen = set(self)
            if not self:  # it joins right after the look at the empty list
                joining = threading.Thread(target=dog.add, args=(lock.lease_of_test,))
                joining.start()
                until(lambda: lock.lease_of_test in self, "joining")
                self.copy = lambda: set(self)
            return seen

    lock.lease_of_test = lock.lease
    dog._leases = Leases()
    dog._next = time.monotonic() - 1  # as left by the renewal of a lease that has gone since
    dog._thread = threading.Thread(target=dog._run, name="watchdog of a test", daemon=True)
    dog._thread.start()
    until(lambda: len(backend.times("extend")) > 1, "the renewal of the lease that joined")
    lock.release()
    dog.remove(lock.lease_of_test)


def test_where_no_thread_can_be_started_nothing_is_held_and_the_next_one_starts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    dog, backend = Watchdog(), scripted()
    monkeypatch.setattr("locking.lease.lock.watchdog", dog)
    monkeypatch.setattr("locking.lease.lease.watchdog", dog)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            backend.lock("a").acquire()
    assert not backend.held
    assert not backend.inspect()
    with backend.lock("a", ttl=TTL):
        until(lambda: len(backend.times("extend")) > 1, "renewals")
    assert dog._thread is not None
    dog._thread.name = "watchdog of a test"


def test_a_renewal_under_way_does_not_undo_a_longer_extension() -> None:
    backend = scripted()
    asked, answer = threading.Event(), threading.Event()
    backend.then("extend", lambda: (asked.set(), answer.wait(PATIENCE)))
    with backend.lock("a", ttl=3) as lease:
        assert asked.wait(PATIENCE)
        backend.lock("a").extend(60)
        answer.set()  # the store carries it out after the other
        until(lambda: len(backend.times("extend")) == 3, "another renewal, by the new ttl")
        until(lambda: backend.inspect()[0].expires_in > 50, "the longer lease")
        until(lambda: lease.remaining > 50, "the holder knowing of it")


def test_a_dead_holders_lease_is_let_go() -> None:
    backend = scripted()
    thread = threading.Thread(target=backend.lock("a", ttl=0.45).acquire)
    thread.start()
    thread.join()
    assert backend.lock("a").acquire(timeout=PATIENCE)
    backend.lock("a").release()
    assert not backend.held


def test_one_thread_renews_for_all_backends() -> None:
    first, second = scripted(), scripted()
    with first.lock("a", ttl=TTL), first.lock("b", ttl=TTL), second.lock("a", ttl=TTL):
        until(lambda: len(first.times("extend")) > 1 and second.times("extend"), "renewals")
        assert len(watchdogs()) == 1
        assert len(watchdog) == 3
    assert len(watchdog) == 0


def test_sessions_that_do_not_expire_are_left_alone() -> None:
    from locking.handler import create

    backend = create("process", {"BACKEND": "locking.backends.process.ProcessBackend"})
    with backend.lock("a", ttl=0.1):
        assert len(watchdog) == 0


def test_a_forked_child_renews_its_own_and_not_its_parents() -> None:
    backend = scripted()
    with backend.lock("a", ttl=TTL):
        until(lambda: watchdogs(), "the thread starting")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                backend.calls.clear()
                left_alone = len(watchdog) == 0 and not watchdogs()
                with backend.lock("b", ttl=TTL) as lease:
                    until(lambda: len(backend.times("extend")) > 1, "renewals in the child")
                    code = 0 if left_alone and not lease.lost and len(watchdogs()) == 1 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        before = len(backend.times("extend"))
        until(lambda: len(backend.times("extend")) > before, "renewals in the parent")


def test_an_unavailable_store_at_release_is_said_and_nothing_is_renewed() -> None:
    backend = scripted()
    backend.then("release", silent)
    with pytest.raises(LockUnavailable), backend.lock("a"):
        pass
    assert len(watchdog) == 0
    assert not backend.held
