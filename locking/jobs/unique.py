"""At most one message of a task and key is queued or running: `unique(send, "42", [42])`.

The sender acquires a lock and hands it over to the queue; one delivery of the message takes it over
and renews it while the task runs. The lock's owner in the store begins with the id of the message,
which a second sender reads there.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from celery import Task
from celery.exceptions import Ignore
from celery.result import AsyncResult
from celery.signals import task_postrun, task_revoked
from celery.utils import uuid

from locking.claims import Claim
from locking.conf import policy_settings
from locking.exceptions import LockError, LockLost, LockMisuse
from locking.handler import locks
from locking.lease import Lease
from locking.lease.lease import Ticket
from locking.lease.steps import run
from locking.names import UNIQUE_PREFIX, ReservedName, storable

logger = logging.getLogger("locking")

HEADER = "locking_unique_ticket"  # ticket, seconds in the queue
PATIENCE = 1.0
"""Seconds after the backend's ttl at which a holder that died is free for certain."""


class UniqueTask(Task):  # type: ignore[misc]
    """The base of the tasks that `unique` sends: `@shared_task(base=UniqueTask)`."""

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Take over the key, or drop a delivery whose key another one holds."""
        if header := (self.request.headers or {}).get(HEADER):
            self.request.unique_lease = lease = self._take_over(task_id, header[0])
            if lease:  # a retry is sent with these headers
                header[0] |= {"owner": lease.owner, "token": lease.token}
        super().before_start(task_id, args, kwargs)

    def _take_over(self, message: str, ticket: Ticket) -> Lease | None:
        try:
            with suppress(LockLost):
                return _taken_over(ticket)
            # It was delivered again, or was in the queue for too long.
            alias, name, wait = ticket["backend"], ticket["name"], 0.0
            while isinstance(lease := _acquire(alias, name, message, wait), Claim):
                if wait or _message_of(lease) not in (message, ""):
                    logger.warning("job %s[%s] not run: its key is held", self.name, message)
                    raise Ignore
                wait = locks[alias].ttl + PATIENCE  # by another delivery, which may have died
        except LockError as error:
            logger.warning("job %s[%s] runs without its key: %s", self.name, message, error)
            return None
        return lease


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
    name = storable(f"{UNIQUE_PREFIX}{task.name}:{key}")
    alias = using or policy_settings()["BACKEND"]
    message = options.setdefault("task_id", uuid())
    while isinstance(lease := _acquire(alias, name, message, ttl=queued_for), Claim):
        if first := _message_of(lease):  # else it ended a moment ago
            return task.AsyncResult(first)
    try:
        header = [lease.hand_over(), queued_for]
        options["headers"] = {**(options.get("headers") or {}), HEADER: header}
        return task.apply_async(args, kwargs, **options)
    except BaseException:
        with suppress(LockError):
            lease.backend.release(lease.claim, lease.token)
        raise
    finally:
        lease.forget()


def _acquire(
    alias: str, name: str, message: str, wait: float = 0.0, ttl: float | None = None
) -> Lease | Claim:
    """Return a lease of a new delivery, which is the caller and the owner in every process."""
    lock = locks[alias].lock(ReservedName(name), ttl=ttl)
    lock.owner = f"{message}/{uuid()}"
    return run(lock.grant(lock.owner, wait))


def _message_of(claim: Claim) -> str:
    return claim.holder.owner.rpartition("/")[0] if claim.holder else ""


def _taken_over(ticket: Ticket) -> Lease:
    """Return the lease of the first delivery. Raise LockLost for every other one."""
    store = locks[ticket["backend"]]
    named = {**ticket, "name": ReservedName(ticket["name"])}
    lock = store.take_over(named, ttl=store.ttl)
    lock.owner = f"{ticket['owner'].rpartition('/')[0]}/{uuid()}"
    lease = run(lock.grant(lock.owner, 0))
    assert isinstance(lease, Lease)
    return lease


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
            _taken_over(header[0]).release()
