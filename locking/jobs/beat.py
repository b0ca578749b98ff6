"""Beat with its schedule in the database, made for several beats at once.

    CELERY_BEAT_SCHEDULER = "locking.jobs.beat:Scheduler"

Every message carries the scheduled time that it is for, and all beats name the same times: an
interval counts from 1970, not from the moment at which a beat was started. What several beats send
several times, `locking.run_once` does once. Times that a beat was too slow for, or that passed
while all were down, are sent late, the last `MISSED` of them. Before a message goes out its run has
a row, so that one that is lost on the way is sent again; see `locking.jobs.run_once`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import schedules
from celery.utils.time import remaining
from django.db import DatabaseError
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler, ModelEntry

from locking.jobs.run_once import HEADER, OLDEST, announce, is_run_once

logger = logging.getLogger("locking")

MISSED = 10
"""Scheduled times that one beat sends at once when it missed them, the newest ones."""
EARLY = 0.01
"""Seconds by which beat comes before the time that it is told."""


class EverySlot(schedules.schedule):
    """An interval whose times are its whole multiples since 1970, the same on every machine."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """To the first multiple after `last_run_at`; negative once it has passed."""
        return timedelta(seconds=self._following(last_run_at) - self.now().timestamp())

    def is_due(self, last_run_at: datetime) -> Any:
        """Whether a multiple has passed since `last_run_at`, and the seconds to the next one."""
        now = self.now()
        due = self._following(last_run_at) <= now.timestamp()
        return schedules.schedstate(due, self._following(now) - now.timestamp() + EARLY)

    def _following(self, moment: datetime) -> float:
        return float((moment.timestamp() // self.seconds + 1) * self.seconds)


def slots(schedule: Any, after: datetime, until: datetime) -> list[datetime]:
    """The scheduled times after one moment and up to another, the last `MISSED` of them.

    Of intervals and crontabs; any other schedule is due in the minute that `until` is in.
    """
    after = max(after, until - OLDEST)
    if isinstance(schedule, EverySlot):
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
    """A row of the schedule, on the common slots."""

    schedule: Any

    def __init__(self, model: PeriodicTask, app: Any = None) -> None:
        super().__init__(model, app=app)
        plain = self.schedule
        if type(plain) is schedules.schedule and plain.seconds > 0:
            self.schedule = EverySlot(plain.run_every, nowfun=plain.nowfun, app=self.app)


class Scheduler(DatabaseScheduler):
    """Sends every scheduled time by its name."""

    Entry = Entry

    def update_from_dict(self, mapping: Mapping[str, Any]) -> None:
        """CELERY_BEAT_SCHEDULE fills in what is missing; what staff have edited stays edited."""
        there = PeriodicTask.objects.filter(name__in=mapping).values_list("name", flat=True)
        missing = mapping.keys() - set(there)
        super().update_from_dict({name: mapping[name] for name in missing})

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send an entry that is due, once for each of its times since its last run."""
        for slot in slots(entry.schedule, entry.last_run_at, datetime.now(UTC)):
            if is_run_once(self.app.tasks.get(entry.task)):
                try:
                    announce(entry.task, entry.args, entry.kwargs, slot)
                except DatabaseError as error:
                    logger.warning("job %s @ %s: no row: %s", entry.task, slot, error)
            headers = {**entry.options["headers"], HEADER: slot.isoformat()}
            entry.options = {**entry.options, "headers": headers}
            super().apply_entry(entry, producer=producer)
