"""`run_once` and `unique` on Django's Tasks, in this process: the immediate backend of Django."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from locking import LockMisuse, lock, locks
from locking.jobs import runs, times
from locking.jobs.run_once import current_run, enqueue_run, run_once
from locking.jobs.unique import unique, unique_task
from locking.models import JobRun

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

pytestmark = pytest.mark.django_db(transaction=True)
State = JobRun.State
NOON = timezone.now().replace(minute=0, second=0, microsecond=0)
executed: list[Any] = []


@task(queue_name="default", priority=7)
@run_once(attempts=2, backoff=10)
def tidy(word: str = "") -> None:
    executed.append((current_run().scheduled_for, current_run().attempt, word))
    if word == "refuse":
        raise ValueError(word)


@task(takes_context=True)
@run_once
def with_context(context: Any, word: str) -> None:
    executed.append((context.attempt, word))


@task
@unique_task
def keyed(number: int) -> None:
    executed.append((number, unique(keyed, "k", [number + 1])))


@task
def leaves_a_lock() -> None:
    lock("left").acquire()


@pytest.fixture(autouse=True)
def _clean() -> None:
    executed.clear()


def test_scheduled_time_runs_once() -> None:
    for moment in (NOON, NOON, NOON.astimezone(times.UTC)):
        enqueue_run(tidy, ["a"], scheduled_for=moment)
    enqueue_run(tidy, kwargs={"word": "b"}, scheduled_for=NOON)
    assert executed == [(NOON, 1, "a"), (NOON, 1, "b")]
    assert sorted(run.duplicates for run in JobRun.objects.all()) == [0, 2]


def test_each_other_message_is_a_run_of_its_own() -> None:
    for _ in range(2):
        tidy.enqueue("a")
        with_context.enqueue("c")
    assert [word for *_, word in executed] == ["a", "c", "a", "c"]
    assert JobRun.objects.filter(state=State.DONE).count() == 4


def test_failed_run_is_enqueued_again_as_it_was() -> None:
    enqueue_run(tidy, ["refuse"], scheduled_for=NOON)
    assert runs.resend_unfinished() == 0
    JobRun.objects.update(lease_until=timezone.now(), sent_at=NOON - timedelta(days=1))
    runs.register("tests.gone", [], {}, NOON, options={"backend": "default"})
    gone = {"backend": "default", "queue": "gone", "priority": 7}
    runs.register(tidy.module_path, ["gone"], {}, NOON, options=gone)
    JobRun.objects.filter(attempts=0).update(sent_at=NOON - timedelta(days=2))
    assert runs.resend_unfinished() == 1
    assert executed == [(NOON, 1, "refuse"), (NOON, 2, "refuse")]
    failed = JobRun.objects.get(state=State.FAILED)
    assert failed.options == {"backend": "default", "queue": "default", "priority": 7}


def test_key_is_held_while_the_task_runs() -> None:
    for number in (1, 2):
        assert unique(keyed, "k", [number])
    assert executed == [(1, None), (2, None)]
    assert not locks["redis"].inspect()


def test_lock_that_a_task_leaves_behind_is_released() -> None:
    leaves_a_lock.enqueue()
    assert not lock("left").locked()


def test_what_cannot_run_once_is_refused() -> None:
    async def later() -> None: ...

    for decorate in (run_once, unique_task):
        with pytest.raises(LockMisuse, match="is async"):
            decorate(later)
    with pytest.raises(LockMisuse, match="put @run_once below"):
        enqueue_run(keyed, [1], scheduled_for=NOON)
    with pytest.raises(LockMisuse, match="put @unique_task below"):
        unique(tidy, "k")
    with pytest.raises(LockMisuse, match="No run_once task"):
        tidy.func()  # a direct call only calls the function
    assert not JobRun.objects.exists()
