"""Locks of one backend, and the leases that they grant."""

from locking.lease.lease import Lease
from locking.lease.lock import Lock

__all__ = ["Lease", "Lock"]
