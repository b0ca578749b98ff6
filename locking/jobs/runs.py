"""Runs of jobs: one row for each (task, arguments, scheduled time).

The row records what has been done. The number of the attempt in it is the run's fencing token: a
machine that was paused past its lease and replaced can finish nothing any more.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Any

from django.db import router, transaction
from django.db.models import QuerySet
from django.utils import timezone

from locking import metrics
from locking.exceptions import LockError, LockLost
from locking.jobs import django_queue, times
from locking.jobs.delivery import HEADER, RUN, digest
from locking.lease import Lease
from locking.models import JobRun
from locking.policy.lock import PolicyLock

QUEUES: list[Any] = [django_queue]
"""What receives and sends messages; Celery is last, on which a task backend may be built."""
if find_spec("celery"):
    from locking.jobs import celery_queue

    QUEUES.append(celery_queue)

logger = logging.getLogger("locking")

OPTIONS = ("backend", "queue", "exchange", "routing_key", "priority", "expires", "headers")
"""The options of a message that its repetitions keep."""
MAX_MESSAGE_AGE = timedelta(days=1)
"""A message for an earlier scheduled time is refused."""
RESEND_INTERVAL = timedelta(seconds=10)
"""An unfinished run gets at most one more message within this time."""
RESEND_BATCH = 100
"""The number of messages that one call of `resend_unfinished` sends at most."""

State = JobRun.State
UNFINISHED = (State.DUE, State.RUNNING)


class Run:
    """One attempt at one scheduled time, as the body of a task sees it."""

    def __init__(self, row: JobRun, lease: Lease) -> None:
        self.row = row
        self.task = row.task
        self.scheduled_for = row.scheduled_for
        self.attempt = row.attempts + 1
        """1, 2, ...: grows with each takeover, and is the run's fencing token."""
        self.lease = lease
        self.finished = False
        self._rows = _primary().filter(pk=row.pk, attempts=self.attempt)

    def check(self) -> None:
        """Raise LockLost if another machine may have taken over the run."""
        self.lease.check()
        if not self._rows.filter(state=State.RUNNING).exists():
            raise self._lost()

    @contextmanager
    def finish(self) -> Iterator[None]:
        """Commit the writes of the block together with the end of the run, in the runs' database.

        Raise LockLost without entering the block if another attempt has taken over. Use it for the
        last, short part of a task: the row of the run is locked meanwhile.
        """
        with transaction.atomic(using=self._rows.db):
            if not self._end(State.DONE):
                raise self._lost()
            yield
        self.finished = True

    def succeed(self, result: object) -> None:
        """Record that the body has returned; called by run_once."""
        detail = "" if result is None else _detail(result)
        if self.finished:
            self._rows.update(detail=detail)
        elif not self._end(State.DONE, detail=detail):
            raise self._lost()
        metrics.job(self.task, "done")

    def fail(self, error: Exception, retry_after: float | None) -> bool:
        """Record that the body has raised; called by run_once.

        retry_after: seconds until the next attempt, None if there is none. Return False if another
        attempt has taken over.
        """
        state, wait = (State.FAILED, 0.0) if retry_after is None else (State.DUE, retry_after)
        until = timezone.now() + timedelta(seconds=wait)
        detail = _detail(f"{type(error).__name__}: {error}")
        if not self._end(state, detail=detail, lease_until=until):
            return False
        metrics.job(self.task, "failed" if retry_after is None else "tried_again")
        return True

    def _end(self, state: State, **changes: Any) -> int:
        running = self._rows.filter(state=State.RUNNING)
        return running.update(state=state, ended_at=timezone.now(), **changes)

    def _lost(self) -> LockLost:
        return LockLost(f"{self.row}: attempt {self.attempt} was taken over.")


def _detail(result: object) -> str:
    """Return a text that every database keeps: without NUL bytes and halves of characters."""
    return str(result).encode(errors="backslashreplace").decode().replace("\0", "\\0")[:500]


def lock_of(row: JobRun, ttl: float | None = None) -> PolicyLock:
    """Return the lock that is held while the run lasts."""
    # The row decides. An eager task may run inside a transaction of its caller.
    return PolicyLock(f"job:{row.task:.100}:{row.pk}", ttl=ttl, until="block")


def register(
    task: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    scheduled_for: datetime,
    *,
    run: str = "",
    options: Mapping[str, Any] | None = None,
) -> JobRun:
    """Return the row of a run, created if missing; `resend_unfinished` covers it from now on.

    run: the digest of a run that task, arguments and scheduled time do not identify. options: those
    of its message; `expires` is a time, or seconds after the scheduled time.
    """
    arguments = json.dumps([args, kwargs], sort_keys=True) if args or kwargs else ""
    now = timezone.now()
    kept = {name: value for name in OPTIONS if (value := (options or {}).get(name)) is not None}
    if isinstance(expires := kept.get("expires"), int | float):
        expires = scheduled_for + timedelta(seconds=expires)
    if isinstance(expires, datetime):
        kept["expires"] = expires.isoformat()
    return JobRun.objects.get_or_create(
        pk=run or digest(task, arguments, scheduled_for.astimezone(UTC).isoformat()),
        defaults={
            "task": task,
            "arguments": arguments,
            "options": kept,
            "scheduled_for": times.stored(scheduled_for),
            "lease_until": now,
            "sent_at": now,
        },
    )[0]


def resend_unfinished() -> int:
    """Send another message for each run that was not started or not finished; return their number.

    Any number of machines may call it at the same time. Runs older than MAX_MESSAGE_AGE fail.
    """
    now = timezone.now()
    unfinished = _primary().filter(state__in=UNFINISHED, lease_until__lte=now)
    missed = unfinished.filter(scheduled_for__lt=now - MAX_MESSAGE_AGE)
    at_work = [row.pk for row in missed.filter(state=State.RUNNING) if _is_at_work(row)]
    if number := missed.exclude(pk__in=at_work).update(
        state=State.FAILED, detail="Not finished within a day."
    ):
        logger.error("%d job runs failed: not finished within a day", number)
    to_send = unfinished.filter(sent_at__lte=now - RESEND_INTERVAL)
    sent = 0
    # Those that cannot be sent keep no other one from its turn: they come last the next time.
    for row in to_send.order_by("sent_at")[:RESEND_BATCH]:
        if not to_send.filter(pk=row.pk).update(sent_at=now) or _is_at_work(row):
            continue  # another machine sends it, or it needs no message
        options = row.options or {}
        expires = options.get("expires")
        if expires and times.aware(datetime.fromisoformat(expires)) <= times.now():
            unfinished.filter(pk=row.pk).update(state=State.FAILED, ended_at=now)
            logger.warning("job %s: expired before it was finished", row)
            continue
        args, kwargs = json.loads(row.arguments or "[[], {}]")
        own = {HEADER: times.aware(row.scheduled_for).isoformat(), RUN: row.pk}
        sent += any(queue.send(row.task, args, kwargs, own, options) for queue in QUEUES)
    return sent


def _is_at_work(row: JobRun) -> bool:
    """Return whether a worker may still hold the lock of the run, although its lease is over."""
    try:
        return row.state == State.RUNNING and lock_of(row).locked()
    except LockError:
        return True  # without its store, no other worker could start the run


def _primary() -> QuerySet[JobRun]:
    """Return the rows in the database that is written: a replica may not have the newest."""
    return JobRun.objects.using(router.db_for_write(JobRun))
