"""What can go wrong with a lock.

    LockError
    ├── LockTimeout       held by somebody else for the whole wait; safe to retry
    ├── LockLost          it was ours and is not any more: expired, broken or taken over
    ├── LockUnavailable   the service is silent or refuses; who owns the lock is unknown
    └── LockMisuse        the call itself is wrong (also a ValueError); retrying cannot help

    IdempotencyError      nothing was done
    ├── KeyUnusable       400: no key, more than one, too long, or with control characters
    ├── KeyReused         422: the key was sent before with another request
    └── KeyInFlight       409: an earlier send of the key is still at work; safe to retry

A client library's own errors never leave a backend: they arrive as the `__cause__` of one of these.
"""


class LockError(Exception):
    """Something went wrong with a lock."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.__doc__)


class LockTimeout(LockError):
    """The lock was held by somebody else for as long as the caller would wait."""


class LockLost(LockError):
    """The lock is no longer held by this owner."""


class LockUnavailable(LockError):
    """The lock service does not answer, so nobody can say who owns the lock."""


class LockMisuse(LockError, ValueError):
    """The lock was asked for something it cannot do."""


class IdempotencyError(Exception):
    """A request that is to count once could not be answered."""

    status: int

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.__doc__)


class KeyUnusable(IdempotencyError):
    """The request needs one idempotency key of 1 to 255 characters, none of them a control."""

    status = 400


class KeyReused(IdempotencyError):
    """The same idempotency key came with another request."""

    status = 422


class KeyInFlight(IdempotencyError):
    """An earlier send of the same idempotency key is still being worked on."""

    status = 409
    retry_after = 1
    """Seconds after which to send it again."""
