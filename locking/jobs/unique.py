"""At most one message of a task and key is queued or running: `unique(send, "42", [42])`.

The sender acquires a lock and hands it over to the queue; a worker renews it while the task runs.
The lock's owner in the store is the id of the message, which a second sender reads there.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from celery.result import AsyncResult
from celery.signals import task_postrun, task_prerun, task_revoked
from celery.utils import uuid

from locking.claims import Claim
from locking.conf import policy_settings
from locking.exceptions import LockError
from locking.handler import locks
from locking.lease import Lease
from locking.lease.steps import run
from locking.names import UNIQUE_PREFIX, ReservedName, storable

logger = logging.getLogger("locking")

HEADER = "locking_unique"  # backend, name, seconds in the queue
_running: dict[str, Lease] = {}


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

    The key is free after success, failure and revocation; after a crash, a termination or a hard
    time limit, when the worker's lease ends. queued_for: seconds after which a message that no
    worker has received no longer counts. using: an alias in LOCKS, by default that of LOCK_POLICY;
    its backend must hand over leases. The other options are those of `apply_async`.
    """
    name = storable(f"{UNIQUE_PREFIX}{task.name}:{key}")
    header = [using or policy_settings()["BACKEND"], name, queued_for]
    message = options.setdefault("task_id", uuid())
    while isinstance(lease := _acquire(header, message, queued_for), Claim):
        if lease.holder is not None:  # else it ended a moment ago
            return task.AsyncResult(lease.holder.owner)
    options["headers"] = {**(options.get("headers") or {}), HEADER: header}
    try:
        lease.hand_over()
        return task.apply_async(args, kwargs, **options)
    except BaseException:
        with suppress(LockError):
            lease.backend.release(lease.claim, lease.token)
        raise
    finally:
        lease.forget()


def _acquire(header: Any, message: str, ttl: float | None = None) -> Lease | Claim:
    # The message is the caller and the owner in every process.
    lock = locks[header[0]].lock(ReservedName(header[1]), ttl=ttl)
    lock.owner = message
    return run(lock.grant(message, 0))


@task_prerun.connect  # type: ignore[untyped-decorator]
def _start(task_id: str, task: Any, **kwargs: Any) -> None:
    if header := (task.request.headers or {}).get(HEADER):
        with suppress(LockError):
            if isinstance(lease := _acquire(header, task_id), Lease):
                _running[task_id] = lease
                return lease.renew()
        logger.warning("job %s[%s] runs, but has lost its key", task.name, task_id)


@task_postrun.connect  # type: ignore[untyped-decorator]
def _end(task_id: str, task: Any, state: str, **kwargs: Any) -> None:
    if lease := _running.pop(task_id, None):
        with suppress(LockError):
            if state == "RETRY":  # it is queued again
                lease.claim.ttl = task.request.headers[HEADER][2]
                lease.hand_over()
            lease.release()


@task_revoked.connect  # type: ignore[untyped-decorator]
def _revoke(request: Any, terminated: bool, **kwargs: Any) -> None:
    header = (request.headers or {}).get(HEADER)
    if header and not terminated:  # a process that is terminated may still run for a moment
        with suppress(LockError):
            if isinstance(lease := _acquire(header, request.id), Lease):
                lease.release()
