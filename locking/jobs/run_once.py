"""Scheduled work that counts once, however many machines start it and however often.

    @shared_task
    @run_once
    def settle_accounts() -> int:
        ...
        with current_run().finish():  # what is written here is written exactly once
            ...

A run is one (task, arguments, scheduled time). The scheduled time comes with the message, from
`locking.jobs.beat` or from whoever sends it, so every copy of a message is known for a copy. Three
things guard a run, and each covers for the others:

- a lock, in the backend in force, keeps a second machine out while the first is at work, however
  long that takes;
- a row says what was done, for whoever comes after that;
- the number of the attempt, in that row, is the run's fencing token: a machine that was stopped
  past its lease, and was replaced, can finish nothing any more.

Whatever is begun and not finished, or never begun, is sent again by `resend_unfinished`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar, overload

from celery import current_app, current_task
from celery.signals import before_task_publish
from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from locking import metrics
from locking.exceptions import LockError, LockLost, LockMisuse
from locking.lease import Lease
from locking.models import JobRun
from locking.policy import SAFE_EXCLUSION
from locking.policy.lock import PolicyLock

logger = logging.getLogger("locking")

P = ParamSpec("P")
R = TypeVar("R")

HEADER = "scheduled_for"
"""The message header with the scheduled time, ISO 8601."""
OLDEST = timedelta(days=1)
"""A message for a time longer ago is refused, whoever was asleep so long."""
KEEP = 2 * OLDEST
"""How long rows are kept: longer than any message that they stop."""
RESEND = timedelta(seconds=10)
"""At most one message more in this time for a run that nobody has finished."""
RESENT_AT_ONCE = 100
"""Messages that one call of `resend_unfinished` sends at most."""
TIME_LIMIT = 300.0
"""Seconds that a task may take where Celery sets no limit."""

State = JobRun.State
UNFINISHED = (State.DUE, State.RUNNING)

_current: ContextVar[Run] = ContextVar("run")


class Run:
    """One attempt at one scheduled time: what the body of a task may ask about itself."""

    def __init__(self, row: JobRun, lease: Lease) -> None:
        self.row = row
        self.task = row.task
        self.scheduled_for = row.scheduled_for
        self.attempt = row.attempts + 1
        """1, 2, ...: grows with each take-over, and so is this run's fencing token."""
        self.lease = lease
        self.finished = False
        self._mine = JobRun.objects.filter(pk=row.pk, attempts=self.attempt)

    def check(self) -> None:
        """Raise LockLost when another machine may have taken over."""
        self.lease.check()
        if not self._mine.filter(state=State.RUNNING).exists():
            raise self._lost()

    def previous(self) -> datetime:
        """The scheduled time before this one, so that nothing between two runs is left out.

        The very first run is its own predecessor.
        """
        earlier = JobRun.objects.filter(
            task=self.task, arguments=self.row.arguments, scheduled_for__lt=self.scheduled_for
        )
        times = earlier.order_by("-scheduled_for").values_list("scheduled_for", flat=True)
        return times.first() or self.scheduled_for

    @contextmanager
    def finish(self) -> Iterator[None]:
        """One transaction for what the block writes and the end of the run: both or neither.

        Raises LockLost, and does not enter the block, when another attempt has taken over. Meant
        for the last and short part of a task: the run's row is locked meanwhile.
        """
        with transaction.atomic():
            if not self._end(State.DONE):
                raise self._lost()
            yield
        self.finished = True

    def succeed(self, result: object) -> None:
        """For run_once: the body has returned."""
        detail = "" if result is None else str(result)[:500]
        if self.finished:
            self._mine.update(detail=detail)
        elif not self._end(State.DONE, detail=detail):
            raise self._lost()
        metrics.job(self.task, "done")

    def fail(self, error: Exception, retry_after: float | None) -> bool:
        """For run_once: the body has raised; seconds until it is tried again, or None for never.

        False when the run is not this attempt's any more.
        """
        state, wait = (State.FAILED, 0.0) if retry_after is None else (State.DUE, retry_after)
        until = timezone.now() + timedelta(seconds=wait)
        detail = f"{type(error).__name__}: {error}"[:500]
        if not self._end(state, detail=detail, lease_until=until):
            return False
        metrics.job(self.task, "failed" if retry_after is None else "tried_again")
        return True

    def _end(self, state: State, **changes: Any) -> int:
        running = self._mine.filter(state=State.RUNNING)
        return running.update(state=state, ended_at=timezone.now(), **changes)

    def _lost(self) -> LockLost:
        return LockLost(f"{self.row}: attempt {self.attempt} was taken over.")


def current_run() -> Run:
    """The run whose body calls this; LockMisuse outside of one."""
    run = _current.get(None)
    if run is None:
        raise LockMisuse("No run_once task is running here.")
    return run


@overload
def run_once(body: Callable[P, R]) -> Callable[P, R | None]: ...
@overload
def run_once(
    *, ttl: float | None = None, attempts: int = 5, backoff: float = 5.0
) -> Callable[[Callable[P, R]], Callable[P, R | None]]: ...
def run_once(
    body: Callable[P, R] | None = None,
    *,
    ttl: float | None = None,
    attempts: int = 5,
    backoff: float = 5.0,
) -> Any:
    """Let a Celery task have one effect per scheduled time. Stands below the task's decorator.

    ttl: seconds after which the run of a dead worker is taken over (the lock's own by default).
    attempts: how often a run is begun before it counts as failed; an error is tried again after
    `backoff` seconds, then after twice as many, and so on. A message that was not sent by a
    schedule is a run of its own; a task that is called as a function is just that function.
    """
    if body is None:
        return functools.partial(run_once, ttl=ttl, attempts=attempts, backoff=backoff)

    @functools.wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> R | None:
        if not current_task or current_task.request.called_directly:
            return body(*args, **kwargs)
        row = _row_of(current_task)
        if row is None:
            return None
        lock = PolicyLock(f"job:{row.task:.100}:{row.pk}", ttl=ttl)
        if row.state not in UNFINISHED or not lock.acquire(blocking=False):
            _turn_away(row)
            return None
        try:
            assert lock.lease is not None
            attempt = _begin(row, lock.lease, attempts)
            if attempt is None:
                return None
            return _run(attempt, attempts, backoff, lambda: body(*args, **kwargs))
        finally:
            try:
                lock.release()
            except LockError as error:  # the row has seen to it
                logger.warning("job %s: lock not released cleanly: %s", row, error)

    run.is_run_once = True  # type: ignore[attr-defined]
    return run


def is_run_once(task: Any) -> bool:
    """Whether a Celery task (or None) is one of ours."""
    return getattr(getattr(task, "run", None), "is_run_once", False)


def announce(
    task: str, args: Sequence[Any], kwargs: Mapping[str, Any], scheduled_for: datetime
) -> JobRun:
    """The row of a run, made when it is missing. A run that is announced is not forgotten."""
    arguments = json.dumps([args, kwargs], sort_keys=True) if args or kwargs else ""
    key = "\0".join([task, arguments, scheduled_for.astimezone(UTC).isoformat()])
    now = timezone.now()
    return JobRun.objects.get_or_create(
        pk=hashlib.sha256(key.encode()).hexdigest()[:32],
        defaults={
            "task": task,
            "arguments": arguments,
            "scheduled_for": scheduled_for,
            "lease_until": now,
            "sent_at": now,
        },
    )[0]


def _row_of(task: Any) -> JobRun | None:
    request = task.request
    text = (request.headers or {}).get(HEADER)
    scheduled_for = datetime.fromisoformat(text) if text else timezone.now()
    if timezone.now() - scheduled_for > OLDEST:
        logger.warning("job %s @ %s: too late, not run", task.name, text)
        return None
    return announce(task.name, request.args, request.kwargs, scheduled_for)


def _turn_away(row: JobRun) -> None:
    JobRun.objects.filter(pk=row.pk).update(duplicates=F("duplicates") + 1)
    metrics.job(row.task, "turned_away")


def _begin(row: JobRun, lease: Lease, attempts: int) -> Run | None:
    """Claim the next attempt; None when there is nothing to do, or nothing to be done any more."""
    now = timezone.now()
    over = Q(attempts=0) | Q(lease_until__lte=now)
    mine = JobRun.objects.filter(over, pk=row.pk, state__in=UNFINISHED, attempts=row.attempts)
    if row.attempts >= attempts:
        if mine.update(state=State.FAILED, ended_at=now):
            logger.error("job %s: given up after %d attempts", row, row.attempts)
            metrics.job(row.task, "failed")
        return None
    life = lease.claim.ttl
    if lease.backend.capabilities.exclusion != SAFE_EXCLUSION:
        # The row alone keeps others out, and nobody renews it.
        life = current_task.time_limit or current_app.conf.task_time_limit or TIME_LIMIT
    if not mine.update(
        state=State.RUNNING,
        attempts=row.attempts + 1,
        host=f"{socket.gethostname()}:{os.getpid()}",
        started_at=now,
        ended_at=None,
        lease_until=now + timedelta(seconds=life),
    ):
        _turn_away(row)
        return None
    if row.state == State.RUNNING:
        logger.warning("job %s: taken over from %s", row, row.host)
        metrics.job(row.task, "taken_over")
    return Run(row, lease)


def _run(run: Run, attempts: int, backoff: float, body: Callable[[], R]) -> R | None:
    token = _current.set(run)
    try:
        result = body()
        run.succeed(result)
    except Exception as error:
        final = run.attempt >= attempts
        ours = run.fail(error, None if final else backoff * 2 ** (run.attempt - 1))
        if ours or not isinstance(error, LockLost):
            raise
        logger.warning("job %s", error)
        return None
    finally:
        _current.reset(token)
    return result


def resend_unfinished() -> int:
    """Send again what was begun and never finished, or never begun; return how many were sent.

    Any number of machines may do it at once. Runs older than `OLDEST` are marked as failed.
    """
    now = timezone.now()
    unfinished = JobRun.objects.filter(state__in=UNFINISHED, lease_until__lte=now)
    missed = unfinished.filter(scheduled_for__lt=now - OLDEST)
    if number := missed.update(state=State.FAILED, detail="Nobody finished it within a day."):
        logger.error("%d job runs were not finished by anybody", number)
    silent = unfinished.filter(sent_at__lte=now - RESEND)
    sent = 0
    for row in silent.order_by("scheduled_for")[:RESENT_AT_ONCE]:
        task = current_app.tasks.get(row.task)  # None: it is gone since
        if silent.filter(pk=row.pk).update(sent_at=now) and task:  # nobody else has
            args, kwargs = json.loads(row.arguments or "[[], {}]")
            task.apply_async(args, kwargs, headers={HEADER: row.scheduled_for.isoformat()})
            sent += 1
    return sent


def prune_runs() -> int:
    """Delete the history that is older than `KEEP`; how many rows."""
    return JobRun.objects.filter(scheduled_for__lt=timezone.now() - KEEP).delete()[0]


def _stamp(sender: str, headers: dict[str, Any], **kwargs: Any) -> None:
    """A message that no schedule sends is for now; a copy of it stays for that time."""
    if is_run_once(current_app.tasks.get(sender)):
        headers.setdefault(HEADER, timezone.now().isoformat())


before_task_publish.connect(_stamp)
