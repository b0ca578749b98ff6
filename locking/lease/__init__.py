"""Locks of one backend, and the leases that they grant."""

from locking.lease.all_of import AllOf, Leases
from locking.lease.hand_over import TakenOver
from locking.lease.lease import Lease, State
from locking.lease.lock import Lock, LockOptions, StoreLock
from locking.lease.shared import ReadWriteLock, Semaphore
from locking.lease.store import LockStore

__all__ = [
    "AllOf",
    "Lease",
    "Leases",
    "Lock",
    "LockOptions",
    "LockStore",
    "ReadWriteLock",
    "Semaphore",
    "State",
    "StoreLock",
    "TakenOver",
]
