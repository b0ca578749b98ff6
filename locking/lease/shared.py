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

from locking.claims import READER, WRITER, Claim
from locking.exceptions import LockMisuse
from locking.lease.lease import Lease, LeaseTable
from locking.lease.lock import LockOptions, StoreLock
from locking.lease.steps import Steps
from locking.names import READ_WRITE_PREFIX, SEMAPHORE_PREFIX, ReservedName, check_name

MAX_SLOTS = 10_000
"""Most holders of a semaphore: each store must be able to list them in one reply."""


class SharedLock(StoreLock):
    """A lock that callers may hold together."""

    prefix = READ_WRITE_PREFIX

    def __init__(
        self, table: LeaseTable, name: str, slots: int, **options: Unpack[LockOptions]
    ) -> None:
        check_name(name)
        super().__init__(table, ReservedName(f"{self.prefix}{name}"), **options)
        if not table.backend.capabilities.shared:
            raise LockMisuse(
                f"{table.backend.alias} has no semaphores and no read-write locks: use redis "
                "or zookeeper."
            )
        self.slots = slots

    def claim(self, caller: object) -> Claim:
        """Return a new claim of the caller on one of the places."""
        claim = super().claim(caller)
        claim.slots = self.slots
        return claim


class Semaphore(SharedLock):
    """A lock that up to `slots` callers hold at once; a caller that enters again has one slot."""

    prefix = SEMAPHORE_PREFIX

    def __init__(
        self, table: LeaseTable, name: str, slots: int, **options: Unpack[LockOptions]
    ) -> None:
        if not isinstance(slots, int) or isinstance(slots, bool) or not 0 < slots <= MAX_SLOTS:
            raise LockMisuse(f"Invalid slots {slots!r}: give a whole number from 1 to {MAX_SLOTS}.")
        super().__init__(table, name, slots, **options)

    def locked(self) -> bool:
        """Return whether all slots that this process can see are taken."""
        return len(self.holder_names()) >= self.slots


class _ReadOrWriteLock(SharedLock):
    """One side of a read-write lock. A writer may also enter as a reader, but not vice versa."""

    def lease_of(self, caller: object) -> Lease | None:
        """Return the caller's lease, but no reader's to a writer."""
        lease = super().lease_of(caller)
        return None if lease is None or self._is_upgrade(lease) else lease

    def _is_upgrade(self, lease: Lease) -> bool:
        return self.slots == WRITER and lease.claim.slots == READER

    def enter(self, caller: object, wait: float) -> Steps[Lease | Claim]:
        """Enter the caller's lease again, or return a new one; see `Lock.enter`."""
        lease = super().lease_of(caller)
        if lease is not None and not lease.lost and self._is_upgrade(lease):
            raise LockMisuse(
                f"{self.name!r} is held for reading by this caller, which would wait for itself: "
                "release it before you acquire it for writing."
            )
        return (yield from super().enter(caller, wait))


class ReadWriteLock:
    """Two locks on one name: `read()` for any number of holders, `write()` for one alone."""

    def __init__(self, table: LeaseTable, name: str) -> None:
        self.table = table
        self.name = name

    def read(self, **options: Unpack[LockOptions]) -> SharedLock:
        """Return the lock of a reader."""
        return _ReadOrWriteLock(self.table, self.name, READER, **options)

    def write(self, **options: Unpack[LockOptions]) -> SharedLock:
        """Return the lock of a writer."""
        return _ReadOrWriteLock(self.table, self.name, WRITER, **options)
