"""A scheduler of Celery beat with its schedule in the database; several beats may run at once.

    CELERY_BEAT_SCHEDULER = "locking.jobs.beat:Scheduler"

Every message carries its scheduled time, and all beats compute the same times: an interval counts
from 1970, not from the start of a beat. A job that several beats send several times runs once
(see `run_once`); its scheduled times that passed while beats were slow or down are sent late,
the last `MISSED` of them. The row of a run is created before its message is sent, so that a message
that is lost is sent again (`locking.jobs.runs.resend_unfinished`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from celery import schedules
from celery.utils.time import remaining
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import DatabaseError
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler, ModelEntry

from locking.jobs import times
from locking.jobs.delivery import HEADER, is_run_once
from locking.jobs.runs import MAX_MESSAGE_AGE, register

logger = logging.getLogger("locking")

MISSED = 10
"""The number of missed scheduled times that a beat sends late; the newest ones."""
EARLY = 0.01
"""Seconds by which Celery beat wakes before the time that `is_due` returns."""


class AlignedInterval(schedules.schedule):
    """An interval due at its multiples since 1970, which are the same on every machine."""

    def is_due(self, last_run_at: datetime) -> Any:
        """Return whether a multiple has passed since `last_run_at`, and the seconds to the next."""
        now = self.now()
        due = self._following(last_run_at) <= now.timestamp()
        return schedules.schedstate(due, self._following(now) - now.timestamp() + EARLY)

    def _following(self, moment: datetime) -> float:
        return float((moment.timestamp() // self.seconds + 1) * self.seconds)


def scheduled_times(schedule: Any, after: datetime, until: datetime) -> list[datetime]:
    """Return the scheduled times after `after` and up to `until`, the last `MISSED` of them.

    Intervals and crontabs are computed; any other schedule is due in the minute of `until`.
    """
    after = max(after, until - MAX_MESSAGE_AGE)
    if isinstance(schedule, AlignedInterval):
        every = schedule.seconds
        first, last = int(after.timestamp() // every) + 1, int(until.timestamp() // every)
        numbers = range(max(first, last - MISSED + 1), last + 1)
        return [datetime.fromtimestamp(number * every, UTC) for number in numbers]
    if not isinstance(schedule, schedules.crontab):
        return [until.replace(second=0, microsecond=0)]
    found: list[datetime] = []
    while True:
        start, delta, _ = schedule.remaining_delta(after)
        after = start + remaining(start, delta, start)
        if after > until:
            return found[-MISSED:]
        found.append(after)


class Entry(ModelEntry):
    """A row of the schedule; its intervals are due at the same times on all machines."""

    schedule: Any

    def __init__(self, model: PeriodicTask, app: Any = None) -> None:
        if not settings.USE_TZ:  # the default, `date_changed`, is local, and Celery expects UTC
            model.last_run_at = model.last_run_at or self._default_now()
        super().__init__(model, app=app)
        plain = self.schedule
        if type(plain) is schedules.schedule and plain.seconds > 0:
            self.schedule = AlignedInterval(plain.run_every, nowfun=plain.nowfun, app=self.app)

    @classmethod
    def from_entry(cls, name: str, app: Any = None, **entry: Any) -> Entry:
        """Return the entry of this name, and add its row unless another beat adds it meanwhile."""
        try:
            added: Entry = super().from_entry(name, app=app, **entry)
        except (DatabaseError, ValidationError):  # a deadlock, or the row is there by now
            added = super().from_entry(name, app=app, **entry)
        return added

    def _default_now(self) -> datetime:
        """Return the present time as the row keeps it: in UTC if USE_TZ is False."""
        return super()._default_now() if settings.USE_TZ else times.now().replace(tzinfo=None)


class Scheduler(DatabaseScheduler):
    """A scheduler that sends each message with its scheduled time."""

    Entry = Entry

    def update_from_dict(self, mapping: Mapping[str, Any]) -> None:
        """Add missing entries of CELERY_BEAT_SCHEDULE; entries that staff have edited stay."""
        existing = PeriodicTask.objects.filter(name__in=mapping).values_list("name", flat=True)
        missing = mapping.keys() - set(existing)
        super().update_from_dict({name: mapping[name] for name in missing})

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send one message, or of a run_once task one for each scheduled time since its last run.

        Any other task would repeat its effect for each of the late messages.
        """
        last_run_at = entry.last_run_at
        if last_run_at.tzinfo is None:
            last_run_at = last_run_at.replace(tzinfo=UTC)
        is_run = is_run_once(self.app.tasks.get(entry.task))
        moments = scheduled_times(entry.schedule, last_run_at, now := times.now())
        for moment in moments if is_run else moments[-1:] or [now]:
            if is_run:
                try:
                    register(entry.task, entry.args, entry.kwargs, moment, options=entry.options)
                except DatabaseError as error:
                    logger.warning("job %s @ %s: no row created: %s", entry.task, moment, error)
            headers = {**entry.options["headers"], HEADER: moment.isoformat()}
            entry.options = {**entry.options, "headers": headers}
            super().apply_entry(entry, producer=producer)
