"""Which times beats send, and that all name the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from celery import Celery, schedules
from celery.exceptions import OperationalError
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

from locking.jobs import run_once as jobs
from locking.jobs.beat import EARLY, MISSED, EverySlot, Scheduler, slots
from locking.jobs.tasks import prune_job_runs
from locking.models import JobRun

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def every(seconds: float, now: datetime) -> EverySlot:
    return EverySlot(timedelta(seconds=seconds), nowfun=lambda: now)


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
def test_an_interval_is_due_at_its_multiples(last, now, due, left) -> None:
    is_due, following = every(5, at(now)).is_due(at(last))
    assert is_due == due
    assert following == pytest.approx(left + EARLY, abs=1e-4)


def test_beats_of_different_starts_and_clocks_name_the_same_times() -> None:
    schedule = every(5, NOON)
    named = []
    for start, off in ((0.0, 0.0), (1.7, 0.0), (3.9, 0.4)):
        last = at(start)
        mine = []
        for second in range(6, 40):
            now = at(second + off)
            mine += slots(schedule, last, now)
            last = now
        named.append(mine)
    assert named[0] == named[1] == named[2] == [at(5 * number) for number in range(1, 8)]


def test_what_was_missed_is_sent_up_to_a_number() -> None:
    schedule = every(5, NOON)
    assert slots(schedule, at(-12), at(1)) == [at(-10), at(-5), at(0)]
    assert slots(schedule, at(-3600), at(1)) == [at(-5 * n) for n in reversed(range(MISSED))]
    assert slots(schedule, at(3), at(-60)) == [], "the clock was set back"


def test_crontabs_name_their_minutes() -> None:
    shanghai = ZoneInfo("Asia/Shanghai")
    daily = CrontabSchedule(minute="30", hour="4", timezone=shanghai).schedule
    four_thirty = datetime(2026, 11, 21, 4, 30, tzinfo=shanghai)
    for late in (0.0, 0.3, 3600.0):
        now = four_thirty + timedelta(seconds=late)
        assert slots(daily, now - timedelta(hours=20), now) == [four_thirty]
    assert slots(daily, four_thirty, four_thirty + timedelta(hours=1)) == []
    often = schedules.crontab(app=Celery("crontab", set_as_current=False))
    assert slots(often, at(-150.5), at(0.2)) == [at(-120), at(-60), at(0)]
    assert len(slots(often, at(-86400 * 30), at(0))) == MISSED


@pytest.mark.django_db(transaction=True)
class TestScheduler:
    @pytest.fixture
    def sent(self, monkeypatch) -> list[dict]:
        sent: list[dict] = []
        monkeypatch.setattr(
            prune_job_runs, "apply_async", lambda *args, **options: sent.append(options)
        )
        return sent

    @pytest.fixture
    def scheduler(self) -> Scheduler:
        app = Celery("beat", set_as_current=False)
        app.conf.result_expires = None
        app.conf.beat_schedule = {
            "prune": {"task": "locking.jobs.tasks.prune_job_runs", "schedule": 3600.0}
        }
        app.tasks.register(prune_job_runs)
        return Scheduler(app)

    def test_the_settings_fill_in_what_is_missing_and_no_more(self, scheduler) -> None:
        task = PeriodicTask.objects.get(name="prune")
        assert task.interval.every == 3600
        task.interval = IntervalSchedule.objects.create(every=5, period="seconds")
        task.save()
        again = Scheduler(scheduler.app)
        assert PeriodicTask.objects.get().interval.every == 5
        assert again.schedule["prune"].schedule.seconds == 5
        PeriodicTask.objects.update(enabled=False)
        assert Scheduler(scheduler.app).schedule == {}

    def test_each_time_is_sent_with_its_name_and_has_a_row(self, scheduler, sent) -> None:
        entry = scheduler.schedule["prune"]
        hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        entry.last_run_at = hour - timedelta(minutes=61)
        scheduler.apply_entry(entry)
        expected = [hour - timedelta(hours=1), hour]
        assert [options["headers"][jobs.HEADER] for options in sent] == [
            moment.isoformat() for moment in expected
        ]
        assert sorted(run.scheduled_for for run in JobRun.objects.all()) == expected

    def test_another_beat_finds_the_row_and_sends_as_well(self, scheduler, sent) -> None:
        for beat in (scheduler, Scheduler(scheduler.app)):
            entry = beat.schedule["prune"]
            entry.last_run_at -= timedelta(hours=1)
            beat.apply_entry(entry)
        assert len(sent) == 2
        assert JobRun.objects.count() == 1

    def test_a_tick_that_the_broker_did_not_take_is_not_forgotten(
        self, scheduler, monkeypatch
    ) -> None:
        def refuse(*args: object, **options: object) -> None:
            raise OperationalError("no broker")

        monkeypatch.setattr(prune_job_runs, "apply_async", refuse)
        entry = scheduler.schedule["prune"]
        entry.last_run_at -= timedelta(hours=1)
        scheduler.apply_entry(entry)
        assert JobRun.objects.get().state == JobRun.State.DUE
        sent: list[object] = []
        monkeypatch.setattr(
            prune_job_runs, "apply_async", lambda *args, headers: sent.append(headers)
        )
        JobRun.objects.update(lease_until=NOON, sent_at=NOON)
        assert jobs.resend_unfinished() == 1
        assert sent == [{jobs.HEADER: JobRun.objects.get().scheduled_for.isoformat()}]
