"""Jobs with one effect per scheduled time, on any number of machines.

    @shared_task  # of Celery, or @task of Django
    @run_once
    def settle_accounts() -> int:
        ...
        with current_run().finish():  # the writes of this block happen exactly once
            ...

A run is one (task, arguments, scheduled time). The message carries the scheduled time, so that its
duplicates are recognised. The lock of a run excludes other machines while the first one is working;
its row (`locking.jobs.runs`) covers the time after that and a lost lock.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypeVar, overload

from django.db.models import F, Q
from django.utils import timezone

from locking import metrics
from locking.exceptions import LockError, LockLost, LockMisuse
from locking.jobs import django_queue, times
from locking.jobs.delivery import HEADER, Delivery, is_run_once, refuse_async
from locking.jobs.runs import (
    MAX_MESSAGE_AGE,
    QUEUES,
    UNFINISHED,
    Run,
    State,
    lock_of,
    register,
)
from locking.lease import Lease
from locking.models import JobRun
from locking.names import check_timeout, check_ttl, is_number

logger = logging.getLogger("locking")

P = ParamSpec("P")
R = TypeVar("R")

TIME_LIMIT = 300.0
"""Seconds that a task may take if its queue sets no limit."""

_current: ContextVar[Run] = ContextVar("run")


def current_run() -> Run:
    """Return the run whose body calls this. Raise LockMisuse outside of a run."""
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
    """Decorate the function of a task of Celery or Django: one effect per scheduled time.

    It stands below the task's decorator. ttl: seconds after which the run of a dead worker is taken
    over (default: that of the lock). attempts: the number of attempts before a run fails; after an
    error the next one starts after `backoff` seconds (10 at least), then after twice as many. A
    message without a scheduled time is a run of its own. A direct call only calls the function.
    """
    if body is None:
        if ttl is not None:
            check_ttl(ttl)
        check_timeout(backoff)
        if not is_number(attempts) or attempts < 1:
            raise LockMisuse(f"Invalid attempts {attempts!r}: give 1 or more.")
        return functools.partial(run_once, ttl=ttl, attempts=attempts, backoff=backoff)

    refuse_async(body)

    @functools.wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> R | None:
        delivery = next(filter(None, (queue.received(run, kwargs) for queue in QUEUES)), None)
        if delivery is None:
            return body(*args, **kwargs)
        row = _row_of(delivery)
        if row is None:
            return None
        lock = lock_of(row, ttl)
        if row.state not in UNFINISHED or not lock.acquire(blocking=False):
            _count_duplicate(row)
            return None
        try:
            assert lock.lease is not None
            attempt = _start(row, lock.lease, attempts, delivery.time_limit or TIME_LIMIT)
            if attempt is None:
                return None
            return _run(attempt, attempts, backoff, lambda: body(*args, **kwargs))
        finally:
            try:
                lock.release()
            except LockError as error:  # the row guards the run all the same
                logger.warning("job %s: lock not released cleanly: %s", row, error)

    run.is_run_once = True  # type: ignore[attr-defined]
    return run


def enqueue_run(
    task: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    scheduled_for: datetime,
) -> Any:
    """Enqueue a task of Django for a scheduled time; return the result of this message.

    Any number of machines may do so. The row of the run is created before the message is enqueued,
    so that `manage.py resend_runs` repeats a message that is lost.
    """
    if not is_run_once(task):
        raise LockMisuse(f"{task!r} is not run_once: put @run_once below @task.")
    moment, named = times.aware(scheduled_for), kwargs or {}
    register(task.module_path, args, named, moment, options=django_queue.options_of(task))
    return task.enqueue(*args, **named, **{HEADER: moment.isoformat()})


def _row_of(delivery: Delivery) -> JobRun | None:
    """Return the row of the message's run; None if the message is too old."""
    task, text = delivery.task, delivery.scheduled_for
    scheduled_for = datetime.fromisoformat(text) if text else times.now()
    if times.now() - scheduled_for > MAX_MESSAGE_AGE:
        logger.warning("job %s @ %s: message too old, not run", task, text)
        return None
    args, kwargs, options = delivery.args, delivery.kwargs, delivery.options
    return register(task, args, kwargs, scheduled_for, run=delivery.run, options=options)


def _count_duplicate(row: JobRun) -> None:
    JobRun.objects.filter(pk=row.pk).update(duplicates=F("duplicates") + 1)
    metrics.job(row.task, "turned_away")


def _start(row: JobRun, lease: Lease, attempts: int, time_limit: float) -> Run | None:
    """Claim the next attempt; return None if another one is under way or none is left."""
    now = timezone.now()
    is_free = Q(attempts=0) | Q(lease_until__lte=now)
    claim = JobRun.objects.filter(is_free, pk=row.pk, state__in=UNFINISHED, attempts=row.attempts)
    if row.attempts >= attempts:
        if claim.update(state=State.FAILED, ended_at=now):
            logger.error("job %s: given up after %d attempts", row, row.attempts)
            metrics.job(row.task, "failed")
        return None
    seconds = lease.claim.ttl
    if lease.backend.capabilities.exclusion != "machines":
        # The row alone excludes other machines, and its lease is not renewed.
        seconds = time_limit
    if not claim.update(
        state=State.RUNNING,
        attempts=row.attempts + 1,
        host=f"{socket.gethostname()}:{os.getpid()}",
        started_at=now,
        ended_at=None,
        lease_until=now + timedelta(seconds=seconds),
    ):
        _count_duplicate(row)
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
        is_last = run.attempt >= attempts
        is_recorded = run.fail(error, None if is_last else backoff * 2 ** (run.attempt - 1))
        if is_recorded or not isinstance(error, LockLost):
            raise
        logger.warning("job %s", error)
        return None
    finally:
        _current.reset(token)
    return result
