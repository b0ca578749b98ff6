"""Locks of one backend, and the leases that they grant."""

from locking.lease.lease import Lease
from locking.lease.lock import Lock, LockOptions

__all__ = ["Lease", "Lock", "LockOptions"]
