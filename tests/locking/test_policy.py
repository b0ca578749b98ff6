"""Which lock is in force, and how another one takes its place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connections, transaction
from django.utils import timezone

from loadtest.faults import until
from locking import (
    LockLost,
    LockMisuse,
    LockTimeout,
    LockUnavailable,
    lock,
    locks,
    policy,
)
from locking.models import LockPolicy, LockPolicyChange
from locking.policy import begin_switch, cancel_switch, finish_switch, switch
from tests.locking.scripted import PATH, PATIENCE, ScriptedBackend, silent

pytestmark = [pytest.mark.django_db, pytest.mark.stores]

AGE = 0.1


@pytest.fixture(autouse=True)
def _two_backends(settings, monkeypatch) -> Iterator[None]:
    """`old` is in force, `new` is there; a policy is trusted for a tenth of a second."""
    conf = {"BACKEND": PATH, "TTL": 0.5, "TIMEOUT": 0.5}
    settings.LOCKS = {
        "old": conf,
        "new": conf,
        "blind": {"BACKEND": "locking.backends.process.ProcessBackend", "TTL": 0.2},
    }
    settings.LOCK_POLICY = {"BACKEND": "old", "DISCIPLINE": "conditional"}
    monkeypatch.setattr(policy, "MAX_AGE", AGE)
    monkeypatch.setattr(policy, "FRESH", AGE / 2)
    monkeypatch.setattr(policy.current, "__defaults__", (AGE,))
    monkeypatch.setattr(policy, "OVERDUE", 0.3)
    policy.forget()
    yield
    policy.forget()


@pytest.fixture
def old() -> ScriptedBackend:
    return locks["old"]


@pytest.fixture
def new() -> ScriptedBackend:
    return locks["new"]


@pytest.fixture
def apart(transactional_db: None) -> Iterator[Callable[..., Future]]:
    """Run something in a thread of its own."""
    with ThreadPoolExecutor(8) as pool:

        def call(work: Callable, *args, **kwargs):
            try:
                return work(*args, **kwargs)
            finally:
                connections.close_all()

        yield lambda *args, **kwargs: pool.submit(call, *args, **kwargs)


def row() -> LockPolicy:
    return LockPolicy.objects.get()


# --- what is in force ---------------------------------------------------------------------------


def test_the_first_look_makes_the_row_from_the_settings() -> None:
    now = policy.current()
    assert (now.backend, now.discipline, now.epoch, now.draining) == (
        "old",
        "conditional",
        1,
        False,
    )
    assert (row().backend, row().pk) == ("old", 1)


def test_a_policy_is_read_once_in_a_while(django_assert_num_queries, monkeypatch) -> None:
    policy.current()
    with monkeypatch.context() as patient, django_assert_num_queries(0):
        patient.setattr(policy, "FRESH", 60)
        for _ in range(100):
            policy.current(60)
    LockPolicy.objects.update(epoch=7)
    began = time.monotonic()
    until(lambda: policy.current().epoch == 7, "the change being seen")
    assert time.monotonic() - began < AGE + 0.5


def test_one_reads_while_the_others_go_on(apart, monkeypatch) -> None:
    stale = policy.current()
    until(lambda: time.monotonic() - stale.read_at > AGE / 2, "it being worth another look")
    monkeypatch.setattr(policy, "MAX_AGE", 60)
    reading, answer = threading.Event(), threading.Event()
    read = policy._row

    def slow():
        reading.set()
        assert answer.wait(PATIENCE)
        return read()

    monkeypatch.setattr(policy, "_row", slow)
    reader = apart(policy.current, 60)
    assert reading.wait(PATIENCE)
    assert policy.current(60) is stale, "it waited for somebody else's reading"
    answer.set()
    assert reader.result(PATIENCE) is not stale


def test_a_database_that_is_away_is_an_unavailable_lock(monkeypatch) -> None:
    def gone(**which):
        raise DatabaseError("away")

    monkeypatch.setattr(LockPolicy.objects, "filter", gone)
    with pytest.raises(LockUnavailable), lock("a"):
        pass


@pytest.mark.parametrize(
    ("backend", "discipline", "is_safe"),
    [
        ("old", "conditional", True),
        ("old", "fenced", True),
        ("old", "naive", False),
        ("blind", "naive", False),
    ],
)
def test_naive_writes_are_safe_only_under_a_lock_between_machines(
    backend, discipline, is_safe
) -> None:
    LockPolicy.objects.create(pk=1, backend=backend, discipline=discipline)
    assert policy.current().is_safe is is_safe  # both backends here end at the process


def test_there_is_one_policy() -> None:
    policy.current()
    with pytest.raises(DatabaseError), transaction.atomic():
        LockPolicy.objects.create(pk=2, backend="new")


# --- a switch -----------------------------------------------------------------------------------


def test_a_switch_raises_the_epoch_and_is_remembered() -> None:
    assert str(switch(backend="new", discipline="naive", changed_by="ann", reason="why")) == (
        "new + naive, epoch 2"
    )
    switch(backend="old", changed_by="bob")
    assert (row().epoch, row().discipline, row().next_backend) == (3, "naive", "")
    last, first = LockPolicyChange.objects.all()
    assert (first.epoch, first.from_backend, first.to_backend) == (2, "old", "new")
    assert (first.from_discipline, first.to_discipline) == ("conditional", "naive")
    assert (first.changed_by, first.reason, first.forced) == ("ann", "why", False)
    assert first.drained_ms >= AGE * 1000
    assert (last.epoch, last.to_backend, last.changed_by) == (3, "old", "bob")


def test_the_fence_carries_the_epoch(new) -> None:
    with lock("a") as lease:
        first = lease.fence
    switch(backend="new", force=True)
    with lock("a") as lease:
        assert lease.backend is new
        assert lease.fence[0] == 2
        assert lease.fence > first, "tokens start again, the fence does not"


@pytest.mark.parametrize(
    ("wish", "error"),
    [
        ({"backend": "absent"}, LockMisuse),
        ({"backend": "new", "discipline": "hopeful"}, LockMisuse),
        ({"backend": "new"}, LockUnavailable),
        ({"backend": "new", "force": True}, LockUnavailable),
    ],
)
def test_a_wish_that_cannot_be_granted_changes_nothing(wish, error, new) -> None:
    policy.current()
    new.then("probe", silent)
    with pytest.raises(error):
        switch(**wish)
    assert (row().backend, row().state, row().epoch) == ("old", "steady", 1)
    assert not LockPolicyChange.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_switch_cannot_hide_in_a_transaction() -> None:
    """Nobody would see it drain, and two backends would guard one row."""
    policy.current()
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        switch(backend="new")
    assert row().state == "steady"


def test_a_clock_that_went_back_does_not_spoil_a_switch() -> None:
    policy.current()
    begin_switch(backend="new")
    LockPolicy.objects.update(changed_at=timezone.now() + timedelta(minutes=1))
    assert finish_switch(force=True).backend == "new"
    assert LockPolicyChange.objects.get().drained_ms == 0


# --- draining -----------------------------------------------------------------------------------


def test_new_buyers_wait_and_then_get_the_new_backend(apart, old, new) -> None:
    policy.current()
    begin_switch(backend="new")

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
    with old.lock(policy.BESIDE + "key"), old.lock("build:home"):
        assert switch(backend="new").backend == "new"


def test_new_buyers_are_told_when_the_drain_lasts_longer_than_they_would_wait() -> None:
    policy.current()
    begin_switch(backend="new")
    began = time.monotonic()
    with pytest.raises(LockTimeout), lock("a", timeout=0.2):
        pass
    assert 0.2 <= time.monotonic() - began < 2
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
    begin_switch(backend="new")
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

    old.then("acquire", policy.forget)
    monkeypatch.setattr(policy, "_row", answer)
    with lock("a", timeout=PATIENCE):
        assert len(old.times("acquire")) == 2
    assert len(old.times("release")) == 2


def test_old_holders_are_waited_for_even_when_they_renew(apart, old, new) -> None:
    policy.current()
    held = lock("a")
    held.acquire()
    switching = apart(switch, backend="new")
    until(lambda: len(old.times("extend")) >= 3, "the holder renewing")
    assert time.monotonic() - held.lease.granted_at > old.ttl * 0.9
    assert not switching.done()
    assert not new.times("acquire")
    held.release()
    assert switching.result(PATIENCE).backend == "new"


def test_a_holder_that_will_not_go_stops_the_switch(apart, old) -> None:
    policy.current()
    with lock("a"):
        with pytest.raises(LockTimeout, match="still held"):
            apart(switch, backend="new").result(PATIENCE)
        assert (row().state, row().backend, row().epoch) == ("steady", "old", 1)
    assert not LockPolicyChange.objects.exists()


def test_a_holder_may_take_what_it_needs_to_come_to_its_end(apart, old, new) -> None:
    """Such as a scheduled task its sales: the drain waits for it, and it would for the drain."""
    with lock("job"):
        switched = apart(lambda: switch(backend="new"))
        until(lambda: LockPolicy.objects.get().state == LockPolicy.State.DRAINING, "the drain")
        policy.forget()
        assert policy.current().draining
        with lock("sale", timeout=0.1) as lease:
            assert lease.backend is old
        with pytest.raises(LockTimeout):  # whoever holds nothing waits for the new backend
            apart(lambda: lock("sale", timeout=0.05).__enter__()).result(PATIENCE)
        assert not switched.done()
    assert switched.result(PATIENCE).backend == "new"


def test_a_holder_whom_nobody_can_see_waits_like_others() -> None:
    put_in_force = LockPolicy.objects.update_or_create
    put_in_force(pk=1, defaults={"backend": "blind", "discipline": "conditional"})
    policy.forget()
    with lock("job"):
        begin_switch(backend="new")
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
    old.then("inspect", *[silent] * 1000)
    began = time.monotonic()
    switch(backend="new")
    assert time.monotonic() - began >= AGE + old.ttl


def test_force_waits_for_nobody(old, new) -> None:
    policy.current()
    with lock("a") as before:
        began = time.monotonic()
        switch(backend="new", force=True)
        assert time.monotonic() - began < AGE
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

    racers = [apart(race, backend) for backend in ("new", "blind")]
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
    begin_switch(backend="new", changed_by="ann")
    with pytest.raises(LockTimeout), lock("a", timeout=0.01):
        pass
    assert row().state == "draining", "a young drain is left to the process that began it"
    LockPolicy.objects.update(changed_at=timezone.now() - timedelta(minutes=1))
    with pytest.raises(LockTimeout), lock("a", timeout=0.01):
        pass
    with lock("a", timeout=PATIENCE) as lease:
        assert lease.backend is new
    assert LockPolicyChange.objects.get().changed_by == "ann"


def test_an_overdue_switch_beside_a_holder_is_cancelled(old) -> None:
    policy.current()
    with lock("a"):
        begin_switch(backend="new")
        LockPolicy.objects.update(changed_at=timezone.now() - timedelta(minutes=1))
        policy.finish_overdue_switch()
        assert (row().state, row().backend, row().epoch) == ("steady", "old", 1)


# --- the commands -------------------------------------------------------------------------------


def manage(*args: str) -> str:
    out = StringIO()
    call_command(*args, stdout=out, no_color=True)
    return out.getvalue()


def test_lock_policy_shows_switches_and_remembers() -> None:
    assert "old + conditional, epoch 1" in manage("lock_policy", "show")
    told = manage(
        "lock_policy", "switch", "new", "--discipline", "naive", "--reason", "drill", "--force"
    )
    assert "new + naive, epoch 2" in told
    assert "can oversell" in told
    manage("lock_policy", "switch", "old", "--discipline", "fenced")
    lines = manage("lock_policy", "history").splitlines()
    assert len(lines) == 2
    assert "new + naive -> old + fenced, drained in" in lines[0]
    assert "old + conditional -> new + naive, forced, by" in lines[1]
    assert lines[1].endswith(": drill")
    assert len(manage("lock_policy", "history", "--limit", "1").splitlines()) == 1


def test_lock_policy_cancels() -> None:
    policy.current()
    begin_switch(backend="new")
    assert "draining for new + conditional" in manage("lock_policy", "show")
    assert "old + conditional, epoch 1" in manage("lock_policy", "cancel")
    with pytest.raises(CommandError, match="No switch is under way"):
        manage("lock_policy", "cancel")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("switch", "absent"), "there are: old, new, blind"),
        (("switch", "new", "--discipline", "hopeful"), "invalid choice"),
        (("dance",), "invalid choice"),
        ((), "required"),
    ],
)
def test_lock_policy_refuses(args, says) -> None:
    policy.current()
    with pytest.raises(CommandError, match=says):
        manage("lock_policy", *args)
    assert row().epoch == 1


def test_lock_policy_says_that_a_store_is_silent(new) -> None:
    policy.current()
    new.then("probe", silent)
    with pytest.raises(CommandError, match="does not answer"):
        manage("lock_policy", "switch", "new")


def test_locks_lists_what_is_held(old, new) -> None:
    assert "Nothing is held in 'old'" in manage("locks")
    with lock("sale:7") as lease, new.lock("other"):
        told = manage("locks")
        for cell in ("sale:7", str(lease.token), "0."):
            assert cell in told
        assert "other" not in told
        assert "other" in manage("locks", "--backend", "new")
    assert "cannot list" in manage("locks", "--backend", "blind")
    with pytest.raises(CommandError, match="no lock backend"):
        manage("locks", "--backend", "absent")


@pytest.mark.parametrize(
    "args", [("--break", "a"), ("--yes-break", "a"), ("--break", "a", "--yes-break", "b")]
)
def test_breaking_needs_the_name_twice(old, args) -> None:
    with lock("a") as lease:
        with pytest.raises(CommandError, match="the same name"):
            manage("locks", *args)
        lease.check()
        assert old.inspect()


def test_breaking_takes_the_lock_from_its_holder(old) -> None:
    held = lock("a")
    held.acquire()
    assert "taken from its holder" in manage("locks", "--break", "a", "--yes-break", "a")
    assert not old.inspect()
    with pytest.raises(LockLost):
        held.release()
    with pytest.raises(CommandError, match="Nobody holds"):
        manage("locks", "--break", "a", "--yes-break", "a")
