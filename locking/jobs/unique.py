"""At most one message of a task and key is queued or running: `unique(send, "42", [42])`.

    @shared_task  # of Celery, or @task of Django
    @unique_task
    def send(invoice): ...

The sender acquires a lock and hands it over to the queue; one delivery of the message takes it over
and renews it while the task runs. The lock's owner in the store begins with the id of the message,
which a second sender reads there.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar
from uuid import uuid4

from locking.claims import Claim
from locking.conf import policy_settings
from locking.exceptions import LockError, LockLost, LockMisuse
from locking.handler import locks
from locking.jobs.delivery import function_of, refuse_async
from locking.lease import Lease
from locking.lease.lease import Ticket
from locking.lease.steps import run
from locking.names import UNIQUE_PREFIX, ReservedName, storable

logger = logging.getLogger("locking")

P = ParamSpec("P")
R = TypeVar("R")

HEADER = "locking_unique_ticket"  # ticket, seconds in the queue
PATIENCE = 1.0
"""Seconds after the backend's ttl at which a holder that died is free for certain."""


class KeyHeld(Exception):
    """Another message, or another delivery of this one, holds the key."""


def unique_task(body: Callable[P, R]) -> Callable[P, R | None]:
    """Decorate the function of a task that `unique` sends. It stands below the task's decorator.

    A delivery whose key another one holds does not call the function.
    """
    refuse_async(body)

    @functools.wraps(body)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
        own: Any = kwargs.pop(HEADER, None)
        if not (header := own or _celery_header(body)):
            return body(*args, **kwargs)
        try:
            lease = _take_over(body.__qualname__, header[0])
        except KeyHeld:
            if own:
                return None
            raise Ignore from None
        if lease:  # a retry is sent with these headers
            header[0] |= {"owner": lease.owner, "token": lease.token}
        try:
            return body(*args, **kwargs)
        except Exception as error:
            if not own and _may_be_retried(error):
                current_task.request.unique_lease, lease = lease, None  # `_end` has it now
            raise
        finally:
            with suppress(LockError):
                if lease:
                    lease.release()

    guarded.is_unique = True  # type: ignore[attr-defined]
    return guarded


def unique(
    task: Any,
    key: str,
    args: Any = (),
    kwargs: Any = None,
    *,
    using: str | None = None,
    queued_for: float = 3600.0,
    **options: Any,
) -> Any:
    """Send a task unless a message with the same key is queued or running; return its result.

    A task of Django returns None instead of the first message's result, whose id is not known. The
    key is free after success, failure and revocation; after a crash, a termination or a hard time
    limit, when the worker's lease ends. queued_for: seconds after which a message that no worker
    has received no longer counts. using: an alias in LOCKS, by default that of LOCK_POLICY; its
    backend must hand over leases. The other options are those of `apply_async`, or of Django's
    `using`.
    """
    if not getattr(function_of(task), "is_unique", False):
        raise LockMisuse(f"{task!r} is not unique: put @unique_task below the task's decorator.")
    is_django = hasattr(task, "enqueue")
    path = task.module_path if is_django else task.name
    name, alias = storable(f"{UNIQUE_PREFIX}{path}:{key}"), using or policy_settings()["BACKEND"]
    message = str(uuid4()) if is_django else options.setdefault("task_id", str(uuid4()))
    if not locks[alias].capabilities.hands_over:
        raise locks[alias].backend.no_hand_over()
    while isinstance(lease := _acquire(alias, name, message, ttl=queued_for), Claim):
        if first := _message_of(lease):  # else it ended a moment ago
            return None if is_django else task.AsyncResult(first)
    try:
        header = {HEADER: [lease.hand_over(), queued_for]}
        if is_django:
            return task.using(**options).enqueue(*args, **(kwargs or {}), **header)
        options["headers"] = {**(options.get("headers") or {}), **header}
        return task.apply_async(args, kwargs, **options)
    except BaseException:
        with suppress(LockError):
            lease.backend.release(lease.claim, lease.token)
        raise
    finally:
        lease.forget()


def _take_over(task: str, ticket: Ticket) -> Lease | None:
    """Return the lease of one delivery; None if the store is unavailable. Raise KeyHeld."""
    message = _id_in(ticket["owner"])
    alias, name = ticket["backend"], ticket["name"]
    try:
        # The second time, it waits for another delivery: that may have died, or be about to hand
        # over the key to this message, which is then its retry.
        for wait in (0.0, locks[alias].ttl + PATIENCE, 0.0):
            with suppress(LockLost):
                return _taken_over(ticket)
            # It was delivered again, or was in the queue for too long.
            lease = _acquire(alias, name, message, wait)
            if isinstance(lease, Lease):
                return lease
            if _message_of(lease) not in (message, ""):
                break
    except LockError as error:
        logger.warning("job %s[%s] runs without its key: %s", task, message, error)
        return None
    logger.warning("job %s[%s] not run: its key is held", task, message)
    raise KeyHeld


def _taken_over(ticket: Ticket) -> Lease:
    """Return the lease of the first delivery. Raise LockLost for every other one."""
    store = locks[ticket["backend"]]
    named = {**ticket, "name": ReservedName(ticket["name"])}
    lock = store.take_over(named, ttl=store.ttl)
    lock.owner = f"{_id_in(ticket['owner'])}/{uuid4()}"
    lease = run(lock.grant(lock.owner, 0))
    assert isinstance(lease, Lease)
    return lease


def _acquire(
    alias: str, name: str, message: str, wait: float = 0.0, ttl: float | None = None
) -> Lease | Claim:
    """Return a lease of a new delivery, which is the caller and the owner in every process."""
    lock = locks[alias].lock(ReservedName(name), ttl=ttl)
    lock.owner = f"{message}/{uuid4()}"
    return run(lock.grant(lock.owner, wait))


def _message_of(claim: Claim) -> str:
    return _id_in(claim.holder.owner) if claim.holder else ""


def _id_in(owner: str) -> str:
    return owner.rpartition("/")[0]


if find_spec("celery"):
    from celery import current_task
    from celery.exceptions import Ignore, Retry
    from celery.signals import task_postrun, task_revoked
    from celery.states import RETRY

    @task_postrun.connect  # type: ignore[untyped-decorator]
    def _end(task: Any, state: str | None, **kwargs: Any) -> None:
        """Hand the key over to a retry; free it if Celery has sent none."""
        if lease := task.request.get("unique_lease"):
            with suppress(LockError):
                if state == RETRY:
                    lease.claim.ttl = task.request.headers[HEADER][1]
                    lease.hand_over()
            with suppress(LockError):
                lease.release()

    @task_revoked.connect  # type: ignore[untyped-decorator]
    def _revoke(request: Any, terminated: bool, **kwargs: Any) -> None:
        header = (request.headers or {}).get(HEADER)
        if header and not terminated:  # a process that is terminated may still run for a moment
            with suppress(LockError):
                _taken_over(header[0]).release()


def _may_be_retried(error: Exception) -> bool:
    """Return whether Celery retries the task after this error, or may do so in a moment."""
    again = Retry, *getattr(current_task, "autoretry_for", ())
    return isinstance(error, again) and not current_task.request.is_eager


def _celery_header(body: Callable[..., Any]) -> Any:
    """Return the header of the message whose task this function is; None for any other call."""
    if not find_spec("celery") or not current_task:
        return None
    is_its_own = inspect.unwrap(current_task.run) is inspect.unwrap(body)
    return (current_task.request.headers or {}).get(HEADER) if is_its_own else None
