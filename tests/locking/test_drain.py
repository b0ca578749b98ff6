"""A switch waits for those who hold the old lock, and new buyers wait for the switch."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from loadtest.faults.waiting import until
from locking import LockMisuse, LockTimeout, lock, locks, policy
from locking.models import LockPolicy, LockPolicyChange
from locking.policy import cancel_switch, finish_switch, switch
from tests.locking.scripted import PATIENCE, silent
from tests.locking.two_backends import AGE, apart, new, old, row, two_backends

__all__ = ["apart", "new", "old", "two_backends"]
pytestmark = [pytest.mark.django_db, pytest.mark.stores]


def test_new_buyers_wait_and_then_get_the_new_backend(apart, old, new) -> None:
    policy.current()
    switch(backend="new", wait=False)

    def buy():
        with lock("a", timeout=PATIENCE) as lease:
            return lease.backend, lease.fence[0]

    buyer = apart(buy)
    asked = len(old.times("acquire"))
    until(lambda: policy.current().draining, "the drain being seen")
    assert not buyer.done()
    assert finish_switch().backend == "new"
    assert buyer.result(PATIENCE) == (new, 2)
    assert len(old.times("acquire")) == asked


def test_a_key_in_flight_and_a_rebuild_keep_no_switch_waiting(old) -> None:
    with old.lock(policy.IDEMPOTENCY_PREFIX + "key"), old.lock("build:home"):
        assert switch(backend="new").backend == "new"


def test_new_buyers_are_told_when_the_drain_lasts_longer_than_they_would_wait() -> None:
    policy.current()
    switch(backend="new", wait=False)
    began = time.monotonic()
    with pytest.raises(LockTimeout), lock("a", timeout=0.2):
        pass
    assert 0.2 <= time.monotonic() - began < PATIENCE
    assert lock("a").acquire(blocking=False) is False


def test_a_grant_that_comes_after_the_drain_began_is_given_back(apart, old, new) -> None:
    """It was asked for under the old policy and came under the next."""
    policy.current()
    asked, answer = threading.Event(), threading.Event()
    old.then("acquire", lambda: (asked.set(), answer.wait(PATIENCE)))

    def buy():
        with lock("a", timeout=PATIENCE) as lease:
            return lease.backend

    buyer = apart(buy)
    assert asked.wait(PATIENCE)
    switch(backend="new", wait=False)
    answer.set()
    until(lambda: old.times("release"), "the late grant being given back")
    assert not old.inspect()
    finish_switch()
    assert buyer.result(PATIENCE) is new


def test_a_grant_on_an_old_answer_about_the_policy_is_given_back(old, monkeypatch) -> None:
    """The database took longer to answer than a policy is good for."""
    policy.current()
    read, slow = policy._row, [True]

    def answer():
        found = read()
        if slow.pop() if slow else False:
            began = time.monotonic()
            until(lambda: time.monotonic() - began > AGE * 1.5, "the answer ageing")
        return found

    old.then("acquire", policy.invalidate)
    monkeypatch.setattr(policy, "_row", answer)
    with lock("a", timeout=PATIENCE):
        asked = len(old.times("acquire"))
        assert asked >= 2  # more often where the machine is as slow as this database
    assert len(old.times("release")) == asked


def test_old_holders_are_waited_for_even_when_they_renew(apart, old, new) -> None:
    policy.current()
    old.ttl = 0.5
    held = lock("a", ttl=1.5)
    held.acquire()
    switching = apart(switch, backend="new")
    until(lambda: len(old.times("extend")) >= 2, "the holder renewing")
    assert time.monotonic() - held.lease.granted_at > AGE + old.ttl
    assert not switching.done()
    assert not new.times("acquire")
    held.release()
    assert switching.result(PATIENCE).backend == "new"


def test_a_holder_that_will_not_go_stops_the_switch(apart, old, monkeypatch) -> None:
    monkeypatch.setattr(policy, "SWITCH_GRACE", 0.3)
    old.ttl = 0.1
    policy.current()
    with lock("a", ttl=30):
        with pytest.raises(LockTimeout, match="still held"):
            apart(switch, backend="new").result(PATIENCE)
        assert (row().state, row().backend, row().epoch) == ("steady", "old", 1)
    assert not LockPolicyChange.objects.exists()


def test_a_holder_may_take_what_it_needs_to_come_to_its_end(apart, old, new) -> None:
    """Such as a scheduled task its sales: the drain waits for it, and it would for the drain."""
    with lock("job"):
        switched = apart(lambda: switch(backend="new"))
        until(lambda: LockPolicy.objects.get().state == LockPolicy.State.DRAINING, "the drain")
        policy.invalidate()
        assert policy.current().draining
        with lock("sale", timeout=0.1) as lease:
            assert lease.backend is old
        with pytest.raises(LockTimeout):  # whoever holds nothing waits for the new backend
            apart(lambda: lock("sale", timeout=0.05).__enter__()).result(PATIENCE)
        assert not switched.done()
    assert switched.result(PATIENCE).backend == "new"


def test_a_holder_whom_nobody_can_see_waits_like_others() -> None:
    put_in_force = LockPolicy.objects.update_or_create
    put_in_force(pk=1, defaults={"backend": "blind", "strategy": "conditional"})
    policy.invalidate()
    with lock("job"):
        switch(backend="new", wait=False)
        with pytest.raises(LockTimeout), lock("sale", timeout=0.1):
            pass
        cancel_switch()


def test_a_backend_that_cannot_list_its_holders_is_given_its_longest_lease() -> None:
    switch(backend="blind", force=True)
    began = time.monotonic()
    switch(backend="new")
    assert time.monotonic() - began >= AGE + locks["blind"].ttl


def test_a_silent_old_backend_is_given_its_longest_lease(old) -> None:
    policy.current()
    old.ttl = 0.5
    old.then("inspect", *[silent] * 1000)
    began = time.monotonic()
    switch(backend="new")
    assert time.monotonic() - began >= AGE + old.ttl


def test_force_waits_for_nobody(old, new, monkeypatch) -> None:
    policy.current()
    with lock("a") as before:
        monkeypatch.setattr(policy, "MAX_AGE", PATIENCE)
        began = time.monotonic()
        switch(backend="new", force=True)
        assert time.monotonic() - began < PATIENCE
        assert LockPolicyChange.objects.get().forced
        with lock("b") as after:
            assert (before.backend, after.backend) == (old, new)
            assert after.fence > before.fence


def test_a_holder_releases_where_it_was_granted(old, new) -> None:
    held = lock("a")
    held.acquire()
    switch(backend="new", force=True)
    assert held.acquire(), "re-entry stays in the old backend, too"
    held.release()
    held.extend(30)
    held.release()
    assert not old.inspect()
    assert not new.calls or not new.times("release")


def test_cancelling_stays_with_the_old_backend(apart, old) -> None:
    assert cancel_switch() is False
    policy.current()
    held = lock("a")
    held.acquire()
    switching = apart(switch, backend="new")
    until(lambda: policy.current().draining, "the drain being seen")
    assert cancel_switch() is True
    assert switching.result(PATIENCE).backend == "old"
    assert (row().epoch, row().state, row().next_backend) == (1, "steady", "")
    held.release()
    with lock("b", timeout=PATIENCE) as lease:
        assert lease.backend is old


def test_of_two_switches_at_once_one_is_refused(apart) -> None:
    policy.current()
    start = threading.Barrier(2)

    def race(backend: str) -> str:
        start.wait(PATIENCE)
        try:
            return switch(backend=backend).backend
        except LockMisuse:
            return "refused"

    with lock("a"):  # until then neither is over, and so not before the other has begun
        racers = [apart(race, backend) for backend in ("new", "blind")]
        until(lambda: any(racer.done() for racer in racers), "one being refused")
    told = {racer.result(PATIENCE) for racer in racers}
    assert told == {"refused", row().backend}
    assert (row().epoch, LockPolicyChange.objects.count()) == (2, 1)


def test_force_takes_over_from_a_switch_that_waits(apart) -> None:
    policy.current()
    with lock("a"):
        waiting = apart(switch, backend="new")
        until(lambda: policy.current().draining, "the drain being seen")
        assert switch(backend="blind", force=True).backend == "blind"
        assert waiting.result(PATIENCE).backend == "blind"
    assert (row().epoch, LockPolicyChange.objects.count()) == (2, 1)


def test_a_switch_whose_process_died_is_finished_by_whoever_meets_it(new) -> None:
    policy.current()
    switch(backend="new", changed_by="ann", wait=False)
    with pytest.raises(LockTimeout), lock("a", timeout=0.01):
        pass
    assert row().state == "draining", "a young drain is left to the process that began it"
    LockPolicy.objects.update(changed_at=timezone.now() - timedelta(hours=1))
    with pytest.raises(LockTimeout), lock("a", timeout=0.01):
        pass
    with lock("a", timeout=PATIENCE) as lease:
        assert lease.backend is new
    assert LockPolicyChange.objects.get().changed_by == "ann"


def test_an_overdue_switch_beside_a_holder_is_cancelled(old) -> None:
    policy.current()
    with lock("a"):
        switch(backend="new", wait=False)
        LockPolicy.objects.update(changed_at=timezone.now() - timedelta(hours=1))
        policy.finish_overdue_switch()
        assert (row().state, row().backend, row().epoch) == ("steady", "old", 1)


@pytest.mark.django_db(transaction=True)
def test_who_is_in_a_transaction_leaves_an_overdue_switch_to_others(caplog) -> None:
    policy.current()
    switch(backend="new", wait=False)
    LockPolicy.objects.update(changed_at=timezone.now() - timedelta(minutes=2))
    with transaction.atomic():
        assert not lock("a").acquire(timeout=0.01)
    assert row().state == "draining"
    assert "durable" in caplog.text
