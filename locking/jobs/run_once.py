"""Jobs with one effect per scheduled time, on any number of machines.

    @shared_task
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
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypeVar, overload

from celery import current_app, current_task
from celery.signals import before_task_publish
from celery.utils.time import maybe_make_aware
from django.db.models import F, Q
from django.utils import timezone

from locking import metrics
from locking.exceptions import LockError, LockLost, LockMisuse
from locking.jobs import times
from locking.jobs.runs import (
    HEADER,
    MAX_MESSAGE_AGE,
    RUN,
    UNFINISHED,
    Run,
    State,
    digest,
    lock_of,
    register,
)
from locking.lease import Lease
from locking.models import JobRun
from locking.names import check_timeout, check_ttl

logger = logging.getLogger("locking")

P = ParamSpec("P")
R = TypeVar("R")

TIME_LIMIT = 300.0
"""Seconds that a task may take if Celery sets no limit."""

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
    """Decorate the function of a Celery task: one effect per scheduled time.

    It stands below the task's decorator. ttl: seconds after which the run of a dead worker is taken
    over (default: that of the lock). attempts: the number of attempts before a run fails; after an
    error the next one starts after `backoff` seconds, then after twice as many, and so on. A
    message without a scheduled time is a run of its own. A direct call only calls the function.
    """
    if body is None:
        if ttl is not None:
            check_ttl(ttl)
        check_timeout(backoff)
        return functools.partial(run_once, ttl=ttl, attempts=attempts, backoff=backoff)

    @functools.wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> R | None:
        if not current_task or current_task.request.called_directly:
            return body(*args, **kwargs)
        row = _row_of(current_task)
        if row is None:
            return None
        lock = lock_of(row, ttl)
        if row.state not in UNFINISHED or not lock.acquire(blocking=False):
            _count_duplicate(row)
            return None
        try:
            assert lock.lease is not None
            attempt = _start(row, lock.lease, attempts)
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


def is_run_once(task: Any) -> bool:
    """Return True if a Celery task (or None) is decorated with run_once."""
    return getattr(getattr(task, "run", None), "is_run_once", False)


def _row_of(task: Any) -> JobRun | None:
    """Return the row of the message's run; None if the message is too old."""
    request = task.request
    headers = request.headers or {}
    text = headers.get(HEADER)
    scheduled_for = datetime.fromisoformat(text) if text else times.now()
    if times.now() - scheduled_for > MAX_MESSAGE_AGE:
        logger.warning("job %s @ %s: message too old, not run", task.name, text)
        return None
    run = headers.get(RUN) or ("" if text else _message_run(task.name, request.id))
    sent_with = {**_destination(request), "expires": request.expires, "headers": headers}
    return register(
        task.name, request.args, request.kwargs, scheduled_for, run=run, options=sent_with
    )


def _destination(request: Any) -> dict[str, Any]:
    """Return the options that send a message where this one was sent."""
    info = request.delivery_info or {}
    exchange, key, priority = (info.get(name) for name in ("exchange", "routing_key", "priority"))
    # The default exchange, whose name is empty, takes the routing key for the name of a queue.
    place = {"exchange": exchange, "routing_key": key} if exchange else {"queue": key}
    return {**place, "priority": priority}


def _count_duplicate(row: JobRun) -> None:
    JobRun.objects.filter(pk=row.pk).update(duplicates=F("duplicates") + 1)
    metrics.job(row.task, "turned_away")


def _start(row: JobRun, lease: Lease, attempts: int) -> Run | None:
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
        seconds = current_task.time_limit or current_task.app.conf.task_time_limit or TIME_LIMIT
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


@before_task_publish.connect  # type: ignore[untyped-decorator]
def _add_run(sender: str, headers: dict[str, Any], **kwargs: Any) -> None:
    """Name the run of a message that no schedule sends; its scheduled time is its eta or now."""
    if HEADER not in headers and is_run_once(current_app.tasks.get(sender)):
        eta = headers["eta"]
        moment = datetime.fromisoformat(eta) if eta else times.now()
        headers[HEADER] = maybe_make_aware(moment, current_app.timezone).isoformat()
        headers[RUN] = _message_run(sender, headers["id"])


def _message_run(task: str, message: str) -> str:
    """Return the digest of a run that has no schedule: only its message tells it from others."""
    return digest(task, "message", message)
