"""Locks with several holders: semaphores, and read-write locks.

    with locks["redis"].semaphore("thumbnails", 3):      # up to three holders
        ...
    with locks["redis"].read_write("report").read():     # any number of readers
        ...
    with locks["redis"].read_write("report").write():    # or one writer
        ...

Callers are served in order of arrival. A reader that arrives after a waiting writer waits for it,
so neither starves.
"""

from __future__ import annotations

from typing import Unpack

from locking.backends.base import READER, WRITER, Backend, Claim
from locking.exceptions import LockMisuse
from locking.lease.lease import Lease
from locking.lease.lock import Lock, LockOptions
from locking.types import (
    READ_WRITE_PREFIX,
    SEMAPHORE_PREFIX,
    ReservedName,
    check_name,
    current_caller,
)

MAX_SLOTS = 10_000
"""Most holders of a semaphore: each store must be able to list them in one reply."""


class SharedLock(Lock):
    """A lock that callers may hold together."""

    prefix = READ_WRITE_PREFIX

    def __init__(
        self, backend: Backend, name: str, slots: int, **options: Unpack[LockOptions]
    ) -> None:
        check_name(name)
        super().__init__(backend, ReservedName(f"{self.prefix}{name}"), **options)
        if not backend.capabilities.shared:
            raise LockMisuse(
                f"{backend.alias} has no semaphores and no read-write locks: use redis, zookeeper "
                "or postgresql_session."
            )
        self.slots = slots

    def _claim(self, caller: object) -> Claim:
        claim = super()._claim(caller)
        claim.slots = self.slots
        return claim


class Semaphore(SharedLock):
    """A lock that up to `slots` callers hold at once; a caller that enters again has one slot."""

    prefix = SEMAPHORE_PREFIX

    def __init__(
        self, backend: Backend, name: str, slots: int, **options: Unpack[LockOptions]
    ) -> None:
        if not isinstance(slots, int) or isinstance(slots, bool) or not 0 < slots <= MAX_SLOTS:
            raise LockMisuse(f"Invalid slots {slots!r}: give a whole number from 1 to {MAX_SLOTS}.")
        super().__init__(backend, name, slots, **options)

    def locked(self) -> bool:
        """Return whether all slots that this process can see are taken."""
        held = [held for held in self.backend.inspect() if held.name == self.name]
        return len(held) >= self.slots


class _ReadOrWriteLock(SharedLock):
    """One side of a read-write lock. A writer may also enter as a reader, but not vice versa."""

    def _lease_of(self, caller: object) -> Lease | None:
        lease = super()._lease_of(caller)
        return None if lease is None or self._is_upgrade(lease) else lease

    def _is_upgrade(self, lease: Lease) -> bool:
        return self.slots == WRITER and lease.claim.slots == READER

    def _refuse_upgrade(self, caller: object) -> None:
        lease = super()._lease_of(caller)
        if lease is not None and not lease.lost and self._is_upgrade(lease):
            raise LockMisuse(
                f"{self.name!r} is held for reading by this caller, which would wait for itself: "
                "release it before you acquire it for writing."
            )

    def _enter(self, wait: float) -> Lease | Claim:
        self._refuse_upgrade(current_caller())
        return super()._enter(wait)

    async def _aenter(self, caller: object, wait: float) -> Lease | Claim:
        self._refuse_upgrade(caller)
        return await super()._aenter(caller, wait)


class ReadWriteLock:
    """Two locks on one name: `read()` for any number of holders, `write()` for one alone."""

    def __init__(self, backend: Backend, name: str) -> None:
        self.backend = backend
        self.name = name

    def read(self, **options: Unpack[LockOptions]) -> SharedLock:
        """Return the lock of a reader."""
        return _ReadOrWriteLock(self.backend, self.name, READER, **options)

    def write(self, **options: Unpack[LockOptions]) -> SharedLock:
        """Return the lock of a writer."""
        return _ReadOrWriteLock(self.backend, self.name, WRITER, **options)


Backend.semaphore_class = Semaphore
Backend.read_write_class = ReadWriteLock
