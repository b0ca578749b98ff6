"""A switch waits for the holders of the old backend; new callers wait for the switch."""

import threading
import time
from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from loadtest.faults.waiting import WAIT_TIMEOUT, until
from locking import LockMisuse, LockTimeout, lock, locks, policy
from locking.models import LockPolicy, LockPolicyChange
from locking.policy import cancel_switch, finish_switch, switch
from tests.locking.policy.two_backends import AGE, apart, new, old, row, two_backends
from tests.locking.scripted import unavailable

__all__ = ["apart", "new", "old", "two_backends"]
pytestmark = [pytest.mark.django_db, pytest.mark.stores]


@pytest.fixture(autouse=True)
def _first_read(db: None, two_backends: None) -> None:
    """Create the policy row, and cache it as a process in use has it."""
    policy.current()


def test_new_callers_wait_for_the_new_backend(apart, old, new) -> None:
    switch(backend="new", wait=False)

    def acquire():
        with lock("a", timeout=WAIT_TIMEOUT) as lease:
            return lease.backend, lease.fence[0]

    caller = apart(acquire)
    asked = len(old.times("acquire"))
    until(lambda: policy.current().draining, "the drain")
    assert not caller.done()
    assert finish_switch().backend == "new"
    assert caller.result(WAIT_TIMEOUT) == (new, 2)
    assert len(old.times("acquire")) == asked


def test_switch_does_not_wait_for_keys_in_flight_and_rebuilds(old) -> None:
    with old.lock(policy.IDEMPOTENCY_PREFIX + "key"), old.lock("build:home"):
        assert switch(backend="new").backend == "new"


def test_new_callers_time_out_during_a_long_drain() -> None:
    switch(backend="new", wait=False)
    began = time.monotonic()
    with pytest.raises(LockTimeout), lock("a", timeout=0.2):
        pass
    assert 0.2 <= time.monotonic() - began < WAIT_TIMEOUT
    assert lock("a").acquire(blocking=False) is False


def test_grant_that_arrives_during_the_drain_is_released(apart, old, new) -> None:
    """It was requested under the old policy and arrived under the next one."""
    asked, answer = threading.Event(), threading.Event()
    old.then("acquire", lambda: (asked.set(), answer.wait(WAIT_TIMEOUT)))

    def acquire():
        with lock("a", timeout=WAIT_TIMEOUT) as lease:
            return lease.backend

    caller = apart(acquire)
    assert asked.wait(WAIT_TIMEOUT)
    switch(backend="new", wait=False)
    answer.set()
    until(lambda: old.times("release"), "the release of the late grant")
    assert not old.inspect()
    finish_switch()
    assert caller.result(WAIT_TIMEOUT) is new


def test_grant_after_a_slow_policy_read_is_released(old, monkeypatch) -> None:
    """The database took longer to reply than a policy may be used."""
    read, slow = policy.stored_policy, [True]

    def answer():
        found = read()
        if slow.pop() if slow else False:
            began = time.monotonic()
            until(lambda: time.monotonic() - began > AGE * 1.5, "the reply becoming too old")
        return found

    old.then("acquire", policy.invalidate)
    monkeypatch.setattr(policy, "stored_policy", answer)
    with lock("a", timeout=WAIT_TIMEOUT):
        asked = len(old.times("acquire"))
        assert asked >= 2  # more often if the machine is as slow as this database
    assert len(old.times("release")) == asked


def test_switch_waits_for_holders_that_renew(apart, old, new) -> None:
    old.ttl = 0.5
    held = lock("a", ttl=1.5)
    held.acquire()
    switching = apart(switch, backend="new")
    until(lambda: len(old.times("extend")) >= 2, "the holder renewing")
    assert time.monotonic() - held.lease.granted_at > AGE + old.ttl
    assert not switching.done()
    assert not new.times("acquire")
    held.release()
    assert switching.result(WAIT_TIMEOUT).backend == "new"


def test_holder_that_stays_cancels_the_switch(apart, old, monkeypatch) -> None:
    monkeypatch.setattr(policy, "SWITCH_GRACE", 0.3)
    old.ttl = 0.1
    with lock("a", ttl=30):
        with pytest.raises(LockTimeout, match="still held"):
            apart(switch, backend="new").result(WAIT_TIMEOUT)
        assert (row().state, row().backend, row().epoch) == ("steady", "old", 1)
    assert not LockPolicyChange.objects.exists()


def test_holder_may_acquire_more_locks_during_the_drain(apart, old, new) -> None:
    """Such as a scheduled task that locks its sales; else it and the drain would deadlock."""
    with lock("job"):
        switched = apart(lambda: switch(backend="new"))
        until(lambda: LockPolicy.objects.get().state == LockPolicy.State.DRAINING, "the drain")
        policy.invalidate()
        assert policy.current().draining
        with lock("sale", timeout=0.1) as lease:
            assert lease.backend is old
        with pytest.raises(LockTimeout):  # a caller without a lock waits for the new backend
            apart(lambda: lock("sale", timeout=0.05).__enter__()).result(WAIT_TIMEOUT)
        assert not switched.done()
    assert switched.result(WAIT_TIMEOUT).backend == "new"


def test_holder_in_a_backend_without_a_list_waits_too() -> None:
    LockPolicy.objects.update(backend="blind")
    policy.invalidate()
    with lock("job"):
        switch(backend="new", wait=False)
        with pytest.raises(LockTimeout), lock("sale", timeout=0.1):
            pass
        cancel_switch()


def test_switch_from_a_backend_without_a_list_waits_for_its_ttl() -> None:
    switch(backend="blind", force=True)
    began = time.monotonic()
    switch(backend="new")
    assert time.monotonic() - began >= AGE + locks["blind"].ttl


def test_switch_from_an_unavailable_backend_waits_for_its_ttl(old) -> None:
    old.ttl = 0.5
    old.then("inspect", *[unavailable] * 1000)
    began = time.monotonic()
    switch(backend="new")
    assert time.monotonic() - began >= AGE + old.ttl


def test_forced_switch_does_not_wait(old, new, monkeypatch) -> None:
    with lock("a") as before:
        monkeypatch.setattr(policy, "MAX_AGE", WAIT_TIMEOUT)
        began = time.monotonic()
        switch(backend="new", force=True)
        assert time.monotonic() - began < WAIT_TIMEOUT
        assert LockPolicyChange.objects.get().forced
        with lock("b") as after:
            assert (before.backend, after.backend) == (old, new)
            assert after.fence > before.fence


def test_holder_releases_in_the_backend_that_granted(old, new) -> None:
    held = lock("a")
    held.acquire()
    switch(backend="new", force=True)
    assert held.acquire(), "re-entry must stay in the old backend"
    held.release()
    held.extend(30)
    held.release()
    assert not old.inspect()
    assert not new.calls or not new.times("release")


def test_cancelled_switch_keeps_the_old_backend(apart, old) -> None:
    assert cancel_switch() is False
    held = lock("a")
    held.acquire()
    switching = apart(switch, backend="new")
    until(lambda: policy.current().draining, "the drain")
    assert cancel_switch() is True
    assert switching.result(WAIT_TIMEOUT).backend == "old"
    assert (row().epoch, row().state, row().next_backend) == (1, "steady", "")
    held.release()
    with lock("b", timeout=WAIT_TIMEOUT) as lease:
        assert lease.backend is old


def test_second_switch_at_the_same_time_is_refused(apart) -> None:
    start = threading.Barrier(2)

    def race(backend: str) -> str:
        start.wait(WAIT_TIMEOUT)
        try:
            return switch(backend=backend).backend
        except LockMisuse:
            return "refused"

    with lock("a"):  # neither can finish before the other has begun
        racers = [apart(race, backend) for backend in ("new", "blind")]
        until(lambda: any(racer.done() for racer in racers), "one being refused")
    told = {racer.result(WAIT_TIMEOUT) for racer in racers}
    assert told == {"refused", row().backend}
    assert (row().epoch, LockPolicyChange.objects.count()) == (2, 1)


def test_forced_switch_replaces_one_in_progress(apart) -> None:
    with lock("a"):
        waiting = apart(switch, backend="new")
        until(lambda: policy.current().draining, "the drain")
        assert switch(backend="blind", force=True).backend == "blind"
        assert waiting.result(WAIT_TIMEOUT).backend == "blind"
    assert (row().epoch, LockPolicyChange.objects.count()) == (2, 1)


def test_switch_of_a_dead_process_is_finished_by_others(new) -> None:
    switch(backend="new", changed_by="ann", wait=False)
    with pytest.raises(LockTimeout), lock("a", timeout=0.01):
        pass
    assert row().state == "draining", "a young drain belongs to the process that began it"
    LockPolicy.objects.update(changed_at=timezone.now() - timedelta(hours=1))
    with pytest.raises(LockTimeout), lock("a", timeout=0.01):
        pass
    with lock("a", timeout=WAIT_TIMEOUT) as lease:
        assert lease.backend is new
    assert LockPolicyChange.objects.get().changed_by == "ann"


def test_overdue_switch_is_cancelled_if_a_lock_is_held(old) -> None:
    with lock("a"):
        switch(backend="new", wait=False)
        LockPolicy.objects.update(changed_at=timezone.now() - timedelta(hours=1))
        policy.finish_overdue_switch()
        assert (row().state, row().backend, row().epoch) == ("steady", "old", 1)


@pytest.mark.django_db(transaction=True)
def test_caller_in_a_transaction_does_not_finish_a_switch(caplog) -> None:
    switch(backend="new", wait=False)
    LockPolicy.objects.update(changed_at=timezone.now() - timedelta(minutes=2))
    with transaction.atomic():
        assert not lock("a").acquire(timeout=0.01)
    assert row().state == "draining"
    assert "durable" in caplog.text
