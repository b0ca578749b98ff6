"""At most one Celery message of a task and key is queued or running: `unique(send, "42", [42])`.

The sender acquires a lock and hands it over to the queue; one delivery of the message takes it over
and renews it while the task runs. A second sender reads the id of the message in the store.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery import Task
from celery.exceptions import Ignore
from celery.result import AsyncResult
from celery.signals import task_postrun, task_revoked
from celery.utils import uuid

from locking.exceptions import LockError, LockMisuse
from locking.jobs import keys
from locking.jobs.keys import HEADER


class UniqueTask(Task):  # type: ignore[misc]
    """The base of the tasks that `unique` sends: `@shared_task(base=UniqueTask)`."""

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Take over the key, or drop a delivery whose key another one holds."""
        if header := (self.request.headers or {}).get(HEADER):
            try:
                lease = keys.take_over(self.name, header[0])
            except keys.KeyHeld:
                raise Ignore from None
            self.request.unique_lease = lease
            if lease:  # a retry is sent with these headers
                header[0] |= {"owner": lease.owner, "token": lease.token}
        super().before_start(task_id, args, kwargs)


def unique(
    task: Any,
    key: str,
    args: Any = (),
    kwargs: Any = None,
    *,
    using: str | None = None,
    queued_for: float = 3600.0,
    **options: Any,
) -> AsyncResult:
    """Send a task unless a message with the same key is queued or running; return its result.

    The task's base is `UniqueTask`. The key is free after success, failure and revocation; after a
    crash, a termination or a hard time limit, when the worker's lease ends. queued_for: seconds
    after which a message that no worker has received no longer counts. using: an alias in LOCKS, by
    default that of LOCK_POLICY; its backend must hand over leases. The other options are those of
    `apply_async`.
    """
    if not isinstance(task, UniqueTask):
        raise LockMisuse(f"{task!r} is no UniqueTask: declare it with base=UniqueTask.")
    message = options.setdefault("task_id", uuid())
    lease = keys.reserve(task.name, key, message, using=using, queued_for=queued_for)
    if isinstance(lease, str):
        return task.AsyncResult(lease)
    with keys.handed_over(lease, queued_for) as header:
        options["headers"] = {**(options.get("headers") or {}), HEADER: header}
        return task.apply_async(args, kwargs, **options)


@task_postrun.connect  # type: ignore[untyped-decorator]
def _end(task: Any, state: str, **kwargs: Any) -> None:
    if lease := getattr(task.request, "unique_lease", None):
        with suppress(LockError):
            if state == "RETRY":  # it is queued again
                lease.claim.ttl = task.request.headers[HEADER][1]
                lease.hand_over()
            lease.release()


@task_revoked.connect  # type: ignore[untyped-decorator]
def _revoke(request: Any, terminated: bool, **kwargs: Any) -> None:
    header = (request.headers or {}).get(HEADER)
    if header and not terminated:  # a process that is terminated may still run for a moment
        with suppress(LockError):
            keys.take_over_first(header[0]).release()
