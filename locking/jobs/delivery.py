"""What a message of a run carries, and what a worker learns when it receives one."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from locking.exceptions import LockMisuse

HEADER = "scheduled_for"
"""The header or argument of a message with the scheduled time, ISO 8601."""
RUN = "job_run"
"""The header or argument of a repeated message with the digest of its run."""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One delivery of a message to a worker."""

    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    scheduled_for: str | None
    run: str
    """The digest of a run that task, arguments and scheduled time do not identify, else empty."""
    options: Mapping[str, Any]
    """Those with which the message is sent again."""
    time_limit: float | None = None


def function_of(task: Any) -> Any:
    """Return the function of a task of Celery or Django; None of None."""
    return getattr(task, "run", None) or getattr(task, "func", None)


def is_run_once(task: Any) -> bool:
    """Return True if a task of Celery or Django (or None) is decorated with run_once."""
    return getattr(function_of(task), "is_run_once", False)


def refuse_async(body: Callable[..., Any]) -> None:
    """Raise LockMisuse for a function whose call returns before its work is done."""
    if inspect.iscoroutinefunction(body):
        raise LockMisuse(f"{body.__qualname__} is async: declare it with def.")


def digest(*identity: str) -> str:
    """Return the digest of what identifies a run."""
    return hashlib.sha256("\0".join(identity).encode()).hexdigest()[:32]


def message_run(task: str, message: str) -> str:
    """Return the digest of a run that only the id of its message tells from others."""
    return digest(task, "message", message)
