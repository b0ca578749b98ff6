"""All beats send messages for the same scheduled times."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery, schedules
from celery.exceptions import OperationalError
from django.db import connection, connections
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

from devservers.faults.waiting import until
from locking.jobs import runs, times
from locking.jobs.beat import EARLY, MISSED, AlignedInterval, Scheduler, scheduled_times
from locking.jobs.tasks import prune_job_runs
from locking.models import JobRun

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def every(seconds: float, now: datetime) -> AlignedInterval:
    return AlignedInterval(timedelta(seconds=seconds), nowfun=lambda: now)


@pytest.mark.parametrize(
    ("last", "now", "due", "left"),
    [
        (0.2, 4.9, False, 0.1),
        (0.2, 5.0, True, 5.0),
        (4.9, 5.3, True, 4.7),  # a plain interval would wait until 9.9
        (5.3, 9.99, False, 0.01),
        (-3600, 7.0, True, 3.0),
    ],
)
def test_interval_is_due_at_its_multiples(last, now, due, left) -> None:
    is_due, following = every(5, at(now)).is_due(at(last))
    assert is_due == due
    assert following == pytest.approx(left + EARLY, abs=1e-4)


def test_newest_missed_times_are_sent() -> None:
    schedule = every(5, NOON)
    assert scheduled_times(schedule, at(-12), at(1)) == [at(-10), at(-5), at(0)]
    assert scheduled_times(schedule, at(-3600), at(1)) == [
        at(-5 * n) for n in reversed(range(MISSED))
    ]
    assert scheduled_times(schedule, at(3), at(-60)) == [], "the clock was set back"


def test_crontab_times_are_its_minutes() -> None:
    shanghai = ZoneInfo("Asia/Shanghai")
    daily = CrontabSchedule(minute="30", hour="4", timezone=shanghai).schedule
    four_thirty = datetime(2026, 11, 21, 4, 30, tzinfo=shanghai)
    for late in (0.0, 0.3, 3600.0):
        now = four_thirty + timedelta(seconds=late)
        assert scheduled_times(daily, now - timedelta(hours=20), now) == [four_thirty]
    assert scheduled_times(daily, four_thirty, four_thirty + timedelta(hours=1)) == []
    often = schedules.crontab(app=Celery("crontab", set_as_current=False))
    assert scheduled_times(often, at(-150.5), at(0.2)) == [at(-120), at(-60), at(0)]
    assert len(scheduled_times(often, at(-86400 * 30), at(0))) == MISSED


@pytest.fixture
def sent(monkeypatch) -> list[dict]:
    """Return the options of the messages, which are not sent."""
    sent: list[dict] = []
    monkeypatch.setattr(
        prune_job_runs, "apply_async", lambda *args, **options: sent.append(options)
    )
    return sent


@pytest.fixture
def scheduler(transactional_db: None) -> Scheduler:
    until(lambda: time.time() % 3600 < 3580, "an hour that does not end during the test", 30)
    app = Celery("beat", set_as_current=False)
    app.conf.result_expires = None
    app.conf.beat_schedule = {
        "prune": {"task": "locking.jobs.tasks.prune_job_runs", "schedule": 3600.0}
    }
    app.tasks.register(prune_job_runs)
    return Scheduler(app)


class TestScheduler:
    def test_settings_do_not_overwrite_edited_entries(self, scheduler) -> None:
        task = PeriodicTask.objects.get(name="prune")
        assert task.interval.every == 3600
        task.interval = IntervalSchedule.objects.create(every=5, period="seconds")
        task.save()
        again = Scheduler(scheduler.app)
        assert PeriodicTask.objects.get().interval.every == 5
        assert again.schedule["prune"].schedule.seconds == 5
        PeriodicTask.objects.update(enabled=False)
        assert Scheduler(scheduler.app).schedule == {}

    @pytest.mark.only("mysql", "postgresql")
    def test_entry_that_another_beat_adds_meanwhile_is_no_error(self, scheduler, caplog) -> None:
        PeriodicTask.objects.all().delete()
        others = iter([scheduler.app])

        def start() -> None:
            for app in others:
                Scheduler(app)
            connections.close_all()

        def meanwhile(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            found = execute(sql, *rest)
            if "name" in sql and "FOR UPDATE" in sql:  # this beat found no row
                with ThreadPoolExecutor() as pool:
                    pool.submit(start).result()
            return found

        with connection.execute_wrapper(meanwhile):
            assert set(Scheduler(scheduler.app).schedule) == {"prune"}
        assert PeriodicTask.objects.count() == 1
        assert not [one.getMessage() for one in caplog.records if one.levelno > logging.INFO]

    @pytest.mark.stores
    @pytest.mark.usefixtures("time_zones")
    def test_each_hour_is_sent_once_with_its_time_and_a_row(self, scheduler, sent) -> None:
        entry = scheduler.schedule["prune"]
        assert not entry.is_due().is_due, "created just now"
        assert entry.is_due().next <= 3601
        hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        entry.last_run_at -= timedelta(hours=2)
        assert entry.is_due().is_due
        scheduler.apply_entry(entry)
        expected = [hour - timedelta(hours=1), hour]
        assert [options["headers"][runs.HEADER] for options in sent] == [
            moment.isoformat() for moment in expected
        ]
        rows = sorted(run.scheduled_for for run in JobRun.objects.all())
        assert rows == [times.stored(moment) for moment in expected]
        next(entry).save()
        assert not scheduler.Entry(entry.model, app=scheduler.app).is_due().is_due

    def test_other_tasks_get_one_message_however_late(self, scheduler, monkeypatch) -> None:
        sent = []

        @scheduler.app.task(shared=False, name="plain")
        def plain() -> None: ...

        monkeypatch.setattr(plain, "apply_async", lambda *args, **options: sent.append(options))
        PeriodicTask.objects.update(task="plain")
        hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        for days in (0.5, 30):
            entry = Scheduler(scheduler.app).schedule["prune"]
            entry.last_run_at = hour - timedelta(days=days)
            scheduler.apply_entry(entry)
        assert [options["headers"][runs.HEADER] for options in sent] == [hour.isoformat()] * 2
        assert not JobRun.objects.exists()

    def test_run_exists_although_the_broker_refused_its_message(
        self, scheduler, monkeypatch
    ) -> None:
        """`resend_unfinished` sends it again."""

        def refuse(*args: object, **options: object) -> None:
            raise OperationalError("no broker")

        monkeypatch.setattr(prune_job_runs, "apply_async", refuse)
        entry = scheduler.schedule["prune"]
        entry.last_run_at -= timedelta(hours=1)
        scheduler.apply_entry(entry)
        row = JobRun.objects.get()
        assert row.state == JobRun.State.DUE
        assert row.options["headers"] == {"periodic_task_name": "prune"}
