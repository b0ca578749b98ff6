"""Reading the active policy, and the effects of a switch."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest
from django.db import (
    DatabaseError,
    InterfaceError,
    connection,
    connections,
    transaction,
)

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockMisuse, LockUnavailable, lock, policy
from locking.models import LockPolicy, LockPolicyChange
from locking.policy import active, cancel_switch, finish_switch, switch, switching
from locking.policy import stored_policy as row
from locking.refresh import clock
from tests.locking.held_call import HeldCall
from tests.locking.scripted import unavailable

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.stores,
    pytest.mark.usefixtures("two_backends"),
]


def test_policy_is_cached_until_its_maximum_age(django_assert_num_queries, monkeypatch) -> None:
    policy.current()
    with monkeypatch.context() as patient, django_assert_num_queries(0):
        patient.setattr(active, "FRESH", 60)
        for _ in range(100):
            policy.current(60)
    seen = policy.current()
    LockPolicy.objects.update(epoch=7)
    until(lambda: clock() - seen.read_at > active.MAX_AGE, "what was seen being old")
    assert policy.current().epoch == 7


def test_callers_use_the_previous_policy_during_a_read(apart, monkeypatch) -> None:
    stale = policy.current()
    until(lambda: clock() - stale.read_at > active.MAX_AGE / 2, "the policy being due for a read")
    monkeypatch.setattr(active, "MAX_AGE", 60)
    monkeypatch.setattr(active, "stored_policy", read := HeldCall(row()))
    assert policy.current(60) is stale
    read.wait_until_started()
    assert policy.current(60) is stale, "it waited for the read"
    read.end()
    until(lambda: policy.current(60) is not stale, "the value of the read")


def test_read_may_take_as_long_as_the_caller_wants_to_wait(transactional_db) -> None:
    policy.invalidate()
    with lock("a", timeout=sys.maxsize) as lease:  # more than a thread can wait
        assert lease.epoch


def test_slow_read_for_one_task_does_not_delay_another(transactional_db, monkeypatch) -> None:
    read = HeldCall(row())

    async def ask() -> None:
        patient = lock("a")
        waiting = asyncio.create_task(patient.aacquire(timeout=WAIT_TIMEOUT * 2))
        await asyncio.sleep(0)  # it asks first
        with pytest.raises(LockUnavailable, match=r"not read within 0\.05"):
            await asyncio.wait_for(lock("b").aacquire(timeout=0.01), WAIT_TIMEOUT)
        assert not waiting.done()
        read.end()
        assert await waiting
        await patient.arelease()

    policy.invalidate()
    monkeypatch.setattr(active, "stored_policy", read)
    monkeypatch.setattr("locking.policy.lock.LAST_READ", 0.05)
    asyncio.run(ask())


def test_read_that_hangs_is_replaced(transactional_db, monkeypatch) -> None:
    """The connection may have been cut in the middle, and then waits for ever."""
    answer, read, reads = threading.Event(), active.stored_policy, []

    def hang_once() -> LockPolicy:
        reads.append(threading.current_thread())
        found = read()
        assert len(reads) > 1 or answer.wait(WAIT_TIMEOUT * 2)
        return found

    policy.current()
    monkeypatch.setattr(active, "stored_policy", hang_once)
    monkeypatch.setattr(active, "READ_TIMEOUT", 1.0)
    for age in ("MAX_AGE", "FRESH"):
        monkeypatch.setattr(active, age, 60.0)
    policy.invalidate()
    try:
        with pytest.raises(LockUnavailable):
            policy.current()
        monkeypatch.setattr(active, "READ_TIMEOUT", WAIT_TIMEOUT)
        LockPolicy.objects.update(epoch=7)
        until(_answers, "another read")
    finally:
        answer.set()
    assert len(set(reads)) == 2
    until(lambda: not reads[0].is_alive(), "the end of the thread that hung")
    assert policy.current().epoch == 7, "it has overwritten a newer policy"


def _answers() -> bool:
    with suppress(LockUnavailable):
        return policy.current().epoch == 7
    return False


@pytest.mark.parametrize(
    ("mode", "is_safe"), [("checked", True), ("unchecked", False), ("removed", False), ("", False)]
)
def test_mode_with_a_warning_or_unknown_is_not_safe(mode, is_safe) -> None:
    LockPolicy.objects.create(pk=1, backend="old", mode=mode)
    assert policy.current().is_safe is is_safe


@pytest.mark.parametrize("mode", ["", "checked"])
def test_project_without_modes_has_none_after_a_switch(mode, settings) -> None:
    settings.LOCK_POLICY = {"BACKEND": "old"}
    LockPolicy.objects.create(pk=1, backend="old", mode=mode)
    assert policy.current().is_safe
    with pytest.raises(LockMisuse, match="Unknown mode 'checked'"):
        switch(backend="new", mode="checked")
    assert str(switch(backend="new")) == "new, epoch 2"
    with lock("a") as lease:
        assert lease.mode == ""


def test_switch_from_a_removed_mode_needs_another_one() -> None:
    LockPolicy.objects.create(pk=1, backend="old", mode="removed")
    with pytest.raises(LockMisuse, match="Unknown mode 'removed'"):
        switch(backend="new")
    assert str(switch(backend="new", mode="checked")) == "new + checked, epoch 2"


def test_database_accepts_only_one_policy_row() -> None:
    policy.current()
    with pytest.raises(DatabaseError), transaction.atomic():
        LockPolicy.objects.create(pk=2, backend="new")


def test_switch_exceeds_the_epochs_that_a_restored_policy_lacks() -> None:
    policy.current()
    epochs = [switch(backend="new", force=True, beyond=beyond).epoch for beyond in (0, 41, 5)]
    assert epochs == [2, 42, 43]


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"backend": "absent"}, LockMisuse),
        ({"backend": "new", "mode": "hopeful"}, LockMisuse),
        ({"backend": "new"}, LockUnavailable),
        ({"backend": "new", "force": True}, LockUnavailable),
    ],
)
def test_failed_switch_changes_nothing(wanted, error, new) -> None:
    policy.current()
    new.backend.then("probe", unavailable)
    with pytest.raises(error):
        switch(**wanted)
    assert (row().backend, row().state, row().epoch) == ("old", "steady", 1)
    assert not LockPolicyChange.objects.exists()


@pytest.fixture
def refused_writes() -> Iterator[None]:
    """Let the database refuse each UPDATE and INSERT."""

    def execute(run, sql, *args):
        if sql.startswith(("UPDATE", "INSERT")):
            raise InterfaceError("the database went away")  # no DatabaseError
        return run(sql, *args)

    policy.current()
    with connection.execute_wrapper(execute):
        yield


def test_switch_without_the_database_is_unavailable(refused_writes, new) -> None:
    with pytest.raises(LockUnavailable, match="went away"):
        switch(backend="new")
    with pytest.raises(LockUnavailable, match="went away"):
        policy.raise_epoch(1, reason="tokens went back")


@pytest.mark.parametrize("still_held", [None, ["a"]])
@pytest.mark.parametrize("step", [cancel_switch, partial(finish_switch, force=True), finish_switch])
def test_steps_without_the_database_are_unavailable(
    step, still_held, refused_writes, monkeypatch
) -> None:
    started = LockPolicy(backend="old", state="draining", next_backend="new", still_held=still_held)
    monkeypatch.setattr(switching, "stored_policy", lambda: started)
    monkeypatch.setattr(switching, "SWITCH_GRACE", -60)
    with pytest.raises(LockUnavailable, match="went away"):
        step()


@pytest.mark.django_db(transaction=True)
def test_staff_switch_in_a_project_with_atomic_requests(admin_client, monkeypatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    policy.current()
    form = {"backend": "new", "mode": "checked", "reason": "x", "step": "drain"}
    assert admin_client.get("/admin/locking/lockpolicy/1/change/").status_code == 200
    assert admin_client.post("/admin/locking/lockpolicy/1/change/", form).status_code == 302
    assert row().backend == "new"


@pytest.mark.django_db(transaction=True)
def test_switch_inside_a_transaction_is_refused() -> None:
    """Other processes would not see it drain, and two backends would guard one row."""
    policy.current()
    with transaction.atomic(), pytest.raises(LockMisuse, match="inside a transaction"):
        switch(backend="new")
    assert row().state == "steady"
