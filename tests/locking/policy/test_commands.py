"""`manage.py lock_policy` and `manage.py locks`."""

import re
from datetime import timedelta
from io import StringIO
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError, call_command
from django.db import InterfaceError, OperationalError, connection
from django.utils import timezone

from locking import LockLost, lock, locks, policy
from locking.jobs import pruning, runs
from locking.models import IdempotencyKey, JobRun, LockPolicyChange, LockRow
from locking.policy import stored_policy as row
from locking.policy import switch

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("two_backends")]


def manage(*args: str) -> str:
    out = StringIO()
    call_command(*args, stdout=out, no_color=True)
    return out.getvalue()


def test_lock_policy_shows_switches_and_lists_history() -> None:
    assert "old + checked, epoch 1" in manage("lock_policy", "show")
    output = manage(
        "lock_policy", "switch", "new", "--mode", "unchecked", "--reason", "drill", "--force"
    )
    assert "new + unchecked, epoch 2" in output
    assert "Warning: Unchecked writes rely on the lock." in output
    manage("lock_policy", "switch", "old", "--discipline", "unchecked")
    manage("lock_policy", "switch", "old", "--strategy", "checked")
    lines = manage("lock_policy", "history").splitlines()
    assert len(lines) == 4
    assert re.search(r" 4 +old \+ unchecked +old \+ checked +\d{3,} ms ", lines[1])
    assert re.search(r" 2 +old \+ checked +new \+ unchecked +forced +\S+ +drill$", lines[3])
    assert len(manage("lock_policy", "history", "--limit", "1").splitlines()) == 2


def test_lock_policy_shows_no_mode_in_a_project_without_modes(settings) -> None:
    settings.LOCK_POLICY = {"BACKEND": "old"}
    assert manage("lock_policy", "show") == "old, epoch 1\n"
    assert manage("lock_policy", "switch", "new", "--force") == "new, epoch 2\n"
    assert " old   new  forced" in manage("lock_policy", "history")
    with pytest.raises(CommandError, match="unrecognized arguments: --mode"):
        manage("lock_policy", "switch", "old", "--mode", "checked")


@pytest.mark.usefixtures("time_zones")
def test_history_shows_local_times(settings) -> None:
    manage("lock_policy", "switch", "new", "--force")
    moment = LockPolicyChange.objects.get().changed_at
    local = moment.astimezone(ZoneInfo(settings.TIME_ZONE)) if settings.USE_TZ else moment
    assert f"{local:%Y-%m-%d %H:%M:%S}" in manage("lock_policy", "history")


@pytest.mark.parametrize(
    "command", ["lock_policy history", "lock_policy show", "prune_locking", "resend_runs"]
)
@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
def test_database_that_is_down_is_reported_without_a_traceback(kind, command) -> None:
    def refuse(*args: object) -> None:
        raise kind("the server has gone away")

    with connection.execute_wrapper(refuse), pytest.raises(CommandError, match="has gone away"):
        manage(*command.split())


def test_lock_policy_cancels_a_switch() -> None:
    policy.current()
    switch(backend="new", wait=False)
    assert "switching to new + checked" in manage("lock_policy", "show")
    assert "old + checked, epoch 1" in manage("lock_policy", "cancel")
    with pytest.raises(CommandError, match="No switch is in progress"):
        manage("lock_policy", "cancel")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("switch", "absent"), "Choose from old, new, blind"),
        (("switch", "new", "--discipline", "hopeful"), "invalid choice: 'hopeful'"),
        (("swich",), "invalid choice: 'swich'"),
        ((), "required"),
    ],
)
def test_lock_policy_rejects_wrong_arguments(args, message) -> None:
    policy.current()
    with pytest.raises(CommandError, match=message):
        manage("lock_policy", *args)
    assert row().epoch == 1


def test_locks_lists_held_locks(old, new) -> None:
    assert "No locks are held in old." in manage("locks")
    with lock("sale:7") as lease, new.lock("other"):
        output = manage("locks")
        assert re.search(rf"^sale:7 .* {lease.token} +\d\d\.\d s", output, re.MULTILINE)
        assert "other" not in output
        assert "other" in manage("locks", "--backend", "new")
    assert "can't be listed" in manage("locks", "--backend", "blind")
    with pytest.raises(CommandError, match="Unknown lock backend"):
        manage("locks", "--backend", "absent")


@pytest.mark.parametrize(
    "args", [("--break", "a"), ("--yes-break", "a"), ("--break", "a", "--yes-break", "b")]
)
def test_break_needs_the_name_twice(old, args) -> None:
    with lock("a") as lease:
        with pytest.raises(CommandError, match="repeat the name"):
            manage("locks", *args)
        lease.check()
        assert old.inspect()


def test_break_ends_the_lease_of_the_holder(old) -> None:
    held = lock("a")
    held.acquire()
    assert "Lock 'a' broken" in manage("locks", "--break", "a", "--yes-break", "a")
    assert not old.inspect()
    with pytest.raises(LockLost):
        held.release()
    with pytest.raises(CommandError, match="'a' is not held"):
        manage("locks", "--break", "a", "--yes-break", "a")


@pytest.mark.stores
@pytest.mark.django_db(transaction=True)
def test_old_rows_are_pruned_without_celery(settings) -> None:
    settings.LOCKS = {"db": {"BACKEND": "locking.backends.database.DatabaseBackend"}}
    assert pruning.RUNS_KEPT_FOR > runs.MAX_MESSAGE_AGE, "a late message would run again"
    long_ago, now = timezone.now() - timedelta(days=3), timezone.now()
    for name, age in (("old", long_ago), ("new", now)):
        JobRun.objects.create(
            digest=name, task=name, scheduled_for=age, lease_until=age, sent_at=age
        )
        IdempotencyKey.objects.create(
            digest=name, user="u", fingerprint="f", status=200, headers={}, body=b"", created_at=age
        )
    LockRow.objects.create(digest="old", name="unused")
    with locks["db"].lock("held"):
        assert manage("prune_locking") == "Deleted 1 lock rows, 1 responses, 1 job runs.\n"
    assert [run.task for run in JobRun.objects.all()] == ["new"]
    assert [key.digest for key in IdempotencyKey.objects.all()] == ["new"]
    assert [row.name for row in LockRow.objects.all()] == ["held"]
