"""Errors of locks and of idempotent requests.

    LockError
    ├── LockTimeout       another caller held the lock for the whole wait (also a TimeoutError);
    │                     safe to retry
    ├── LockLost          the caller no longer holds the lock: it expired, was broken or taken over
    ├── LockUnavailable   the store does not reply or refuses; the owner of the lock is unknown
    └── LockMisuse        the call itself is wrong (also a ValueError); retrying cannot help

    IdempotencyError      the request had no effect
    ├── KeyUnusable       400: no key, several keys, a key too long or with control characters
    ├── KeyReused         422: the key was sent before with another request
    └── KeyInFlight       409: the first request with the key has not finished; safe to retry

The errors of client libraries never leave a backend; they are the `__cause__` of one of these.
"""

from collections.abc import Iterable
from datetime import datetime
from difflib import get_close_matches


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the message for a name that does not exist, with the nearest one that does."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    meant = f"Did you mean {near[0]!r}? " if near else ""
    return f"Unknown {kind} {name!r}. {meant}Choose from {', '.join(names) or 'an empty list'}."


class DocumentedError(Exception):
    """An error whose default message is its docstring."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.__doc__)


class LockError(DocumentedError):
    """A lock operation failed."""


class LockTimeout(LockError, TimeoutError):
    """The lock stayed held by another caller for the whole timeout."""

    def __init__(
        self, message: str | None = None, *, holder: str = "", since: datetime | None = None
    ) -> None:
        super().__init__(message)
        self.holder = holder
        """Owner that the store named at the end of the wait; "" if it names none."""
        self.since = since
        """Time of the holder's grant, if the store records it."""


class LockLost(LockError):
    """The lock is no longer held by this owner."""


class LockUnavailable(LockError):
    """The lock service does not reply, so the owner of the lock is unknown."""


class LockMisuse(LockError, ValueError):
    """The arguments or the order of calls are wrong."""


class IdempotencyError(DocumentedError):
    """The idempotency key does not allow the request."""

    status: int


class KeyUnusable(IdempotencyError):
    """The request needs one idempotency key of 1 to 255 characters without control characters."""

    status = 400


class KeyReused(IdempotencyError):
    """The idempotency key was used before with a different request."""

    status = 422


class KeyInFlight(IdempotencyError):
    """Another request with the same idempotency key is in progress."""

    status = 409
    retry_after = 1
    """Seconds after which the client may send the request again."""
