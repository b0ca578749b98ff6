"""Projects with USE_TZ = False: jobs, beat, commands and admin pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from celery import Celery
from django.core.management import call_command
from django.utils import timezone

from locking import policy
from locking.jobs import celery_queue, runs
from locking.jobs.run_once import current_run, run_once
from locking.models import JobRun, LockPolicyChange
from tests.locking.jobs.test_beat import scheduler, sent

__all__ = ["scheduler", "sent"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]

celery = Celery("no-zones", set_as_current=False)
ran: list[datetime] = []


@celery.task(name="no_zones")
@run_once(attempts=3)
def no_zones() -> None:
    ran.append(current_run().scheduled_for)


@pytest.fixture(autouse=True)
def _no_time_zones(settings, monkeypatch):
    settings.USE_TZ = False
    settings.TIME_ZONE = "Asia/Shanghai"  # unlike UTC, so that a confusion shows
    monkeypatch.setattr(celery_queue, "current_app", celery)
    ran.clear()


def last_hour() -> datetime:
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


def deliver(**options: object) -> None:
    headers = {runs.HEADER: last_hour().isoformat(), **options.pop("headers", {})}
    no_zones.apply(headers=headers, **options).get()


def test_run_once_runs_once():
    deliver()
    deliver()
    assert ran == [timezone.make_naive(last_hour())]
    row = JobRun.objects.get()
    assert (row.state, row.duplicates) == (JobRun.State.DONE, 1)
    assert row.duration < timedelta(minutes=1)


def test_unfinished_run_is_sent_again_and_runs_once(monkeypatch):
    runs.register("no_zones", [], {}, last_hour(), options={"expires": 7200})
    JobRun.objects.update(sent_at=timezone.now() - timedelta(minutes=1))
    sent = []
    monkeypatch.setattr(no_zones, "apply_async", lambda *args, **options: sent.append(options))
    assert runs.resend_unfinished() == 1
    deliver(headers=sent[0]["headers"])
    deliver()
    assert len(ran) == 1
    assert JobRun.objects.count() == 1


@pytest.mark.parametrize("expires", [0, datetime(2026, 1, 1)])
def test_expired_run_is_not_sent_again(expires):
    """A time comes from the form of a periodic task, in the time zone of the project."""
    runs.register("no_zones", [], {}, last_hour(), options={"expires": expires})
    JobRun.objects.update(sent_at=timezone.now() - timedelta(minutes=1))
    assert runs.resend_unfinished() == 0
    assert JobRun.objects.get().state == JobRun.State.FAILED


def test_beat_sends_each_hour_once(scheduler, sent):
    entry = scheduler.schedule["prune"]
    assert not entry.is_due().is_due, "created just now"
    assert entry.is_due().next <= 3601
    entry.last_run_at -= timedelta(hours=1)
    assert entry.is_due().is_due
    scheduler.apply_entry(entry)
    assert [options["headers"][runs.HEADER] for options in sent] == [last_hour().isoformat()]
    assert JobRun.objects.get().scheduled_for == timezone.make_naive(last_hour())
    next(entry).save()
    assert not scheduler.Entry(entry.model, app=scheduler.app).is_due().is_due


def test_history_of_switches_shows_local_times():
    other = "database" if policy.current().backend == "redis" else "redis"
    policy.switch(backend=other, force=True)
    out = StringIO()
    call_command("lock_policy", "history", stdout=out, no_color=True)
    assert f"{LockPolicyChange.objects.get().changed_at:%Y-%m-%d %H:%M:%S}" in out.getvalue()
