"""What can go wrong with a lock.

    LockError
    ├── LockTimeout       held by somebody else for the whole wait; safe to retry
    ├── LockLost          it was ours and is not any more: expired, broken or taken over
    ├── LockUnavailable   the service is silent or refuses; who owns the lock is unknown
    └── LockMisuse        the call itself is wrong (also a ValueError); retrying cannot help

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
