"""Runs and unique messages of Django's Tasks: `django.tasks`, or `django_tasks` on Django 5.2."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, ParamSpec, TypeVar
from uuid import uuid4

from locking.exceptions import LockError, LockMisuse
from locking.jobs import django_queue, keys, times
from locking.jobs.delivery import HEADER, is_run_once
from locking.jobs.run_once import refuse_async
from locking.jobs.runs import register

P = ParamSpec("P")
R = TypeVar("R")


def enqueue_run(
    task: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    scheduled_for: datetime,
) -> Any:
    """Enqueue a run_once task for a scheduled time; return the result of this message.

    Any number of machines may do so. The row of the run is created before the message is enqueued,
    so that `manage.py resend_runs` repeats a message that is lost.
    """
    if not is_run_once(task):
        raise LockMisuse(f"{task!r} is not run_once: put @run_once below @task.")
    moment, named = times.aware(scheduled_for), kwargs or {}
    options = django_queue.options_of(task)
    register(task.module_path, args, named, moment, options=options)
    return task.enqueue(*args, **named, **{HEADER: moment.isoformat()})


def unique_task(body: Callable[P, R]) -> Callable[P, R | None]:
    """Decorate the function of a task that `unique` enqueues. It stands below the task's decorator.

    The key is free when the function has returned or raised, or when the lease of a worker that
    died ends.
    """
    refuse_async(body)

    @functools.wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> R | None:
        header: Any = kwargs.pop(keys.HEADER, None)
        try:
            lease = keys.take_over(body.__qualname__, header[0]) if header else None
        except keys.KeyHeld:
            return None
        try:
            return body(*args, **kwargs)
        finally:
            with suppress(LockError):
                if lease:
                    lease.release()

    run.is_unique = True  # type: ignore[attr-defined]
    return run


def unique(
    task: Any,
    key: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    using: str | None = None,
    queued_for: float = 3600.0,
) -> Any:
    """Enqueue a task unless a message with the same key is queued or running; then return None.

    queued_for: seconds after which a message that no worker has received no longer counts. using:
    an alias in LOCKS, by default that of LOCK_POLICY; its backend must hand over leases. Inside a
    transaction, call it in `transaction.on_commit`: a message that is rolled back keeps its key.
    """
    if not getattr(task.func, "is_unique", False):
        raise LockMisuse(f"{task!r} is not unique: put @unique_task below @task.")
    path, message = task.module_path, str(uuid4())
    lease = keys.reserve(path, key, message, using=using, queued_for=queued_for)
    if isinstance(lease, str):
        return None
    with keys.handed_over(lease, queued_for) as header:
        return task.enqueue(*args, **(kwargs or {}), **{keys.HEADER: header})
