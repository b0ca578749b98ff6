"""The locks of one backend: `locks["redis"].lock("report:42")`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Unpack

from locking.backends.base import Backend
from locking.claims import Capabilities, Held
from locking.lease.all_of import AllOf
from locking.lease.hand_over import TakenOver
from locking.lease.lease import LeaseTable, Ticket
from locking.lease.lock import LockOptions, StoreLock
from locking.lease.shared import ReadWriteLock, Semaphore


class LockStore(LeaseTable):
    """Makes the locks of one backend, and keeps the leases that this process has there."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.alias: str = backend.alias
        self.ttl: float = backend.ttl
        self.timeout: float = backend.timeout

    @property
    def capabilities(self) -> Capabilities:
        """Return what the backend can do; `database` may learn of a pooler while it runs."""
        return self.backend.capabilities

    def lock(self, name: str, **options: Unpack[LockOptions]) -> StoreLock:
        """Return a lock on `name`; see `locking.lease.LockOptions`."""
        return StoreLock(self, name, **options)

    def all_of(self, names: Iterable[str], **options: Unpack[LockOptions]) -> AllOf:
        """Return a lock on all of the names: it is acquired on all of them or on none."""
        return AllOf(partial(self.lock, **options), names)

    def semaphore(self, name: str, slots: int, **options: Unpack[LockOptions]) -> Semaphore:
        """Return a lock that up to `slots` callers hold at once; all pass the same `slots`."""
        return Semaphore(self, name, slots, **options)

    def read_write(self, name: str) -> ReadWriteLock:
        """Return a lock that many readers or one writer hold; see its `read` and `write`."""
        return ReadWriteLock(self, name)

    def take_over(self, ticket: Ticket, **options: Unpack[LockOptions]) -> TakenOver:
        """Return a lock that continues the lease of a ticket; see `Lease.hand_over`."""
        return TakenOver(self, ticket, **options)

    def inspect(self) -> list[Held]:
        """Return the held locks; see `Backend.inspect`."""
        return self.backend.inspect()

    def probe(self) -> None:
        """Check that the store replies; see `Backend.probe`."""
        self.backend.probe()

    def break_lock(self, name: str) -> bool:
        """Release `name` without its holder; see `Backend.break_lock`."""
        return self.backend.break_lock(name)

    def close(self) -> None:
        """Close this process's connections and end its helper thread; see `Backend.close`."""
        self.backend.helper.end()
        self.backend.close()
