"""Keep a lock until the transaction around its block has ended (`until="commit"`)."""

from __future__ import annotations

import threading

from django.db import transaction

from locking.exceptions import LockError
from locking.lease.lease import Lease, logger


def release_at_commit(lease: Lease) -> bool:
    """Release when the default database's transaction ends; return False outside of one."""
    if not transaction.get_connection().in_atomic_block:
        return False
    transaction.on_commit(_AtEnd(lease), robust=True)
    return True


class _AtEnd:
    """Called after a commit. Django drops it after a rollback, for which it has no callback."""

    def __init__(self, lease: Lease) -> None:
        self._leases = [lease]
        self._thread = threading.get_ident()

    def __call__(self) -> None:
        self._leases.pop().release()

    def __del__(self) -> None:
        for lease in self._leases:
            if threading.get_ident() != self._thread:  # the garbage collector runs anywhere
                lease.renewer.left_behind.put(lease)
                return
            try:
                lease.release()
            except LockError:
                logger.warning("lock not released cleanly", exc_info=True)
