"""Locks of one backend, and the leases that they grant."""

from locking.lease.all_of import AllOf, Leases
from locking.lease.hand_over import TakenOver
from locking.lease.lease import Lease
from locking.lease.lock import Lock, LockOptions
from locking.lease.shared import ReadWriteLock, Semaphore

__all__ = [
    "AllOf",
    "Lease",
    "Leases",
    "Lock",
    "LockOptions",
    "ReadWriteLock",
    "Semaphore",
    "TakenOver",
]
