"""A switch waits for the holders of the old backend; new callers wait for the switch."""

import asyncio
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import Lock, LockMisuse, LockTimeout, LockUnavailable, lock, locks, policy
from locking.backends.none import NoneBackend
from locking.lease import LockStore
from locking.management import run
from locking.models import LockPolicy, LockPolicyChange
from locking.names import ReservedName
from locking.policy import active, cancel_switch, finish_switch, switch, switching
from locking.policy import stored_policy as row
from tests.locking.held_call import HeldCall
from tests.locking.scripted import unavailable

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _first_read(db: None, two_backends: None) -> None:
    """Create the policy row, and cache it as a process in use has it."""
    policy.current()


def granted(name: str) -> tuple[LockStore, int]:
    """Acquire and release a lock; return who granted it, and its epoch."""
    with lock(name, timeout=WAIT_TIMEOUT) as lease:
        return lease.table, lease.epoch


def test_new_callers_wait_for_the_new_backend(apart, old, new) -> None:
    switch(backend="new", wait=False)
    caller = apart(granted, "a")
    asked = len(old.backend.times("acquire"))
    until(lambda: policy.current().draining, "the drain")
    assert not caller.done()
    assert finish_switch().backend == "new"
    assert caller.result(WAIT_TIMEOUT) == (new, 2)
    assert len(old.backend.times("acquire")) == asked


def test_switch_does_not_wait_for_keys_in_flight_and_rebuilds(old) -> None:
    with old.lock(ReservedName("idempotency:key")), old.lock(ReservedName("build:home")):
        assert switch(backend="new").backend == "new"


async def is_locked(name: str) -> bool:
    return lock(name).locked()


def test_holder_that_others_wait_for_is_seen_in_the_old_backend(apart, old, monkeypatch) -> None:
    held = lock("a")
    with held, old.lock("b"):
        switch(backend="new", wait=False)
        assert held.locked()
        finishing = apart(finish_switch)
        until(lambda: row().still_held == ["a", "b"], "the hand-over")
        until(lambda: policy.current().backend == "new", "the read")
        assert held.owned()
        assert lock("b").locked()
        assert asyncio.run(is_locked("b"))
        assert not lock("c").locked()
        monkeypatch.setattr(run, "OWN_LOCKS", {})  # as on SQLite
        with pytest.raises(LockTimeout):
            run.run("b", ["true"], backend=None, timeout=0.0)
    assert finishing.result(WAIT_TIMEOUT).backend == "new"
    assert not held.locked()


def test_grant_that_arrives_during_the_drain_is_released(apart, old, new) -> None:
    """It was requested under the old policy and arrived under the next one."""
    old.backend.then("acquire", request := HeldCall())
    caller = apart(granted, "a")
    request.wait_until_started()
    switch(backend="new", wait=False)
    request.end()
    until(lambda: old.backend.times("release"), "the release of the late grant")
    assert not old.inspect()
    finish_switch()
    assert caller.result(WAIT_TIMEOUT) == (new, 2)


def test_grant_after_a_slow_policy_read_is_released(old, monkeypatch) -> None:
    """The database took longer to reply than a policy may be used."""
    read, slow = active.stored_policy, []

    def answer():
        found = read()
        if slow:
            slow.clear()
            began = time.monotonic()
            until(lambda: time.monotonic() - began > 2 * active.MAX_AGE, "a reply that is too old")
        return found

    def become_slow():  # not before: a busy machine may need a first read for the acquire
        slow.append(True)
        policy.invalidate()

    old.backend.then("acquire", become_slow)
    monkeypatch.setattr(active, "stored_policy", answer)
    with lock("a", timeout=WAIT_TIMEOUT):
        asked = len(old.backend.times("acquire"))
        assert asked >= 2  # more often if the machine is as slow as this database
    assert len(old.backend.times("release")) == asked


@pytest.mark.stores
def test_switch_waits_for_holders_that_renew(apart, old, new) -> None:
    old.ttl = 0.5
    held = lock("a", ttl=3)
    held.acquire()
    switching = apart(switch, backend="new")
    until(lambda: len(old.backend.times("extend")) >= 2, "the holder renewing")
    assert time.monotonic() - held.lease.granted_at > active.MAX_AGE + old.ttl
    assert not switching.done()
    assert not new.backend.times("acquire")
    held.release()
    assert switching.result(WAIT_TIMEOUT).backend == "new"


@pytest.mark.parametrize("is_silent", [False, True], ids=["a holder stays", "no reply"])
def test_switch_stops_waiting_but_keeps_the_names(apart, old, new, monkeypatch, is_silent) -> None:
    old.ttl = 0.1
    error, text = LockTimeout, "'a' is still held in 'old'"
    with lock("a", ttl=30):
        switched = apart(switch, backend="new")
        until(lambda: row().still_held, "the hand-over")
        if is_silent:
            old.backend.then("inspect", *[unavailable] * 1000)
            until(lambda: len(old.backend.script["inspect"]) < 1000, "its silence")
            error, text = LockUnavailable, "'a' must wait"
        monkeypatch.setattr(switching, "SWITCH_GRACE", 0.1)
        with pytest.raises(error, match=text):
            switched.result(WAIT_TIMEOUT)
        assert (row().state, row().still_held, row().epoch) == ("draining", ["a"], 2)
        with pytest.raises(LockTimeout):
            apart(lock("a", timeout=0.1).__enter__).result(WAIT_TIMEOUT)
        assert granted("b") == (new, 2)
    assert lock("a").acquire(timeout=0.05) is False, "nothing was told of its release"
    assert not LockPolicyChange.objects.exists()
    old.backend.script.clear()
    assert finish_switch().backend == "new"
    assert (row().epoch, LockPolicyChange.objects.get().epoch) == (2, 2)


def test_holder_may_acquire_other_names_during_the_drain(apart, old, new) -> None:
    """Such as a scheduled task that locks its sales; else it and the drain would deadlock."""
    with lock("job") as outer:
        switched = apart(switch, backend="new")
        until(lambda: policy.current().still_held, "the hand-over")
        assert granted("sale") == apart(granted, "sale").result(WAIT_TIMEOUT) == (new, 2)
        with lock("job") as inner:
            assert inner is outer, "re-entry stays in the old backend"
        assert not switched.done()
    assert switched.result(WAIT_TIMEOUT).backend == "new"


def test_switch_from_a_backend_without_a_list_waits_for_its_ttl(apart, old, monkeypatch) -> None:
    monkeypatch.setattr(old.backend, "capabilities", replace(old.capabilities, lists_holders=False))
    ahead, looks = [0.0], []

    def clock() -> float:
        looks.append(ahead[0])
        return active.clock() + ahead[0]

    monkeypatch.setattr(switching, "clock", clock)
    switched = apart(switch, backend="new")
    until(lambda: looks, "the first step")
    ahead[0] = old.ttl - 1
    until(lambda: looks.count(ahead[0]) > 5, "further steps")
    assert not switched.done()
    ahead[0] = old.ttl + 1
    assert switched.result(WAIT_TIMEOUT).backend == "new"


def test_switch_from_no_lock_waits_for_the_announcement_only(old, monkeypatch) -> None:
    monkeypatch.setattr(old.backend, "capabilities", NoneBackend.capabilities)
    began = time.monotonic()
    assert switch(backend="new").backend == "new"
    assert active.MAX_AGE <= time.monotonic() - began < old.ttl


def test_switch_from_an_unavailable_backend_needs_force(old) -> None:
    """Another process may reach the store and hold a lock there, with any ttl."""
    old.backend.then("inspect", unavailable)
    with pytest.raises(LockUnavailable, match="Only a forced switch"):
        switch(backend="new")
    assert (row().state, row().backend, row().epoch) == ("steady", "old", 1)
    assert switch(backend="new", force=True).backend == "new"


def test_switch_is_cancelled_if_the_old_backend_stops_responding(old, monkeypatch) -> None:
    monkeypatch.setattr(switching, "SWITCH_GRACE", 0.3)
    old.ttl = 0.1
    switch(backend="new", wait=False)
    old.backend.then("inspect", *[unavailable] * 1000)
    with pytest.raises(LockUnavailable, match="Switch cancelled"):
        finish_switch()
    assert (row().state, row().backend, row().epoch) == ("steady", "old", 1)


def test_backend_with_unlisted_lasting_holders_needs_force(old, monkeypatch) -> None:
    """Like GET_LOCK and `process`: other processes may hold locks there for days."""
    for expires, refused in ((True, False), (False, True)):
        found = replace(old.capabilities, lists_holders=False, expires=expires)
        monkeypatch.setattr(old.backend, "capabilities", found)
        with pytest.raises(LockUnavailable, match="do not expire") if refused else nullcontext():
            switch(backend="new", wait=False)
        cancel_switch()
    assert switch(backend="new", force=True).backend == "new"


def test_forced_switch_does_not_wait(old, new, monkeypatch) -> None:
    """A holder re-enters, extends and releases in the backend that granted."""
    held = lock("a")
    held.acquire()
    monkeypatch.setattr(active, "MAX_AGE", WAIT_TIMEOUT)
    began = time.monotonic()
    switch(backend="new", force=True)
    assert time.monotonic() - began < WAIT_TIMEOUT
    assert LockPolicyChange.objects.get().forced
    with lock("b") as after:
        assert after.table is new
        assert after.fence > held.lease.fence, "it must grow although the tokens start again"
    assert held.acquire()
    held.release()
    held.extend(30)
    held.release()
    assert not old.inspect()
    assert len(new.backend.times("release")) == 1


def test_cancelled_switch_keeps_the_old_backend(apart, old, monkeypatch) -> None:
    assert cancel_switch() is False
    held = lock("a")
    held.acquire()
    monkeypatch.setattr(active, "MAX_AGE", 60)  # no hand-over before that
    switching = apart(switch, backend="new")
    until(lambda: row().state == "draining", "the drain")
    assert cancel_switch() is True
    assert switching.result(WAIT_TIMEOUT).backend == "old"
    assert (row().epoch, row().state, row().next_backend) == (1, "steady", "")
    held.release()
    assert granted("b") == (old, 1)


@pytest.mark.stores
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


def test_cancelled_hand_over_switches_back(apart, old) -> None:
    """Names have holders in the new backend by then."""
    with lock("a"):
        switched = apart(switch, backend="new", changed_by="ann")
        until(lambda: policy.current().still_held, "the hand-over")
        other = lock("b", timeout=WAIT_TIMEOUT)
        other.acquire()
        assert cancel_switch() is True
        until(lambda: policy.current().still_held == {"b"}, "the hand-over back")
        with pytest.raises(LockTimeout):
            apart(lock("b", timeout=0.1).__enter__).result(WAIT_TIMEOUT)
        with pytest.raises(LockTimeout):
            apart(lock("a", timeout=0.1).__enter__).result(WAIT_TIMEOUT)
        assert granted("c") == (old, 3)
        other.release()
        assert switched.result(WAIT_TIMEOUT).backend == "old"
    changes = LockPolicyChange.objects.values_list("epoch", "from_backend", "to_backend")
    assert list(changes) == [(3, "new", "old"), (2, "old", "new")]


@pytest.fixture
def helpful(monkeypatch) -> None:
    """Let processes take over a switch at once."""
    monkeypatch.setattr(switching, "HELP_AFTER", 0.1)


@pytest.mark.stores
def test_switch_of_a_dead_process_is_handed_over_and_finished_by_waiters(apart, helpful) -> None:
    """Also by one that waits forever."""
    held = lock("a")
    held.acquire()
    switch(backend="new", changed_by="ann", wait=False)
    waiter = apart(lambda: lock("a").acquire())
    until(lambda: row().still_held == ["a"], "the hand-over")
    held.release()
    assert waiter.result(WAIT_TIMEOUT)
    until(lambda: row().state == "steady", "the end of the switch")
    assert LockPolicyChange.objects.get().changed_by == "ann"


def test_thread_that_finishes_a_switch_leaves_nothing(monkeypatch) -> None:
    """No connection, and a process that ends need not wait for it."""
    seen = []

    def finish() -> None:
        mine = connections[DEFAULT_DB_ALIAS]
        mine.ensure_connection()
        seen.append((threading.current_thread(), mine))

    monkeypatch.setattr(switching, "finish_switch", finish)
    policy.finish_in_background()
    until(lambda: seen, "the thread")
    ((thread, mine),) = seen
    thread.join(WAIT_TIMEOUT)
    assert thread.daemon
    assert mine.connection is None


def test_next_switch_finishes_that_of_a_dead_process(old) -> None:
    """A name that is still held is left to the next one."""
    handed_over = {"state": "draining", "next_backend": "new", "next_mode": "checked"}
    LockPolicy.objects.update(**handed_over, still_held=["a"], epoch=2)
    with old.lock("a"), pytest.raises(LockMisuse, match="in progress"):
        switch(backend="blind")
    assert switch(backend="blind").epoch == 3
    assert LockPolicyChange.objects.count() == 2


def test_wall_clocks_do_not_matter(apart, old) -> None:
    """The machine that began the switch may be hours behind or ahead, or at its first boot."""
    for hours in (-1, 1, -500_000):
        switch(backend="new", wait=False)
        LockPolicy.objects.update(changed_at=timezone.now() + timedelta(hours=hours))
        began = time.monotonic()
        assert finish_switch().backend == "new"
        assert active.MAX_AGE <= time.monotonic() - began < WAIT_TIMEOUT
        assert LockPolicyChange.objects.first().drained_ms < 2**31  # what its column keeps
        switch(backend="old", force=True)


@pytest.mark.only("mysql")  # on SQLite the caller's transaction locks the whole file
def test_waiter_in_a_transaction_has_the_switch_finished(apart, new, helpful) -> None:
    """By a thread: in its own transaction, no other process would see the step."""
    switch(backend="new", wait=False)

    def acquire():
        with transaction.atomic():
            return lock("a", until="block").acquire(timeout=WAIT_TIMEOUT)

    assert apart(acquire).result(WAIT_TIMEOUT)
    assert row().backend == "new"


def test_lock_without_a_policy_reads_no_database(settings, django_assert_num_queries) -> None:
    del settings.LOCK_POLICY
    policy.invalidate()
    with django_assert_num_queries(0), lock("plain", timeout=1) as lease:
        assert lease.table is locks[next(iter(settings.LOCKS))]
        assert lease.epoch == 0
        with lock("plain") as again:
            assert again is lease
        assert lock("plain").owned()
        assert isinstance(lock("plain"), Lock)


def test_lease_of_the_newest_policy_is_entered_again(settings, transactional_db) -> None:
    """After a forced switch, the caller also holds a lease that is lost."""
    first = lock("again")
    assert first.acquire()
    switch(backend="new", force=True)
    locks["old"].break_lock("again")
    first.lease.mark_lost()
    with lock("again") as newest, lock("again") as inner:
        assert inner is newest
        assert newest.table is locks["new"]
