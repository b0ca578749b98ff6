"""RedLock: a majority of independent Redis masters."""

from locking.backends.redlock.backend import RedLockBackend

__all__ = ["RedLockBackend"]
