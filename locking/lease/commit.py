"""Locks and the transaction around their block: refuse them, or keep them until its end."""

from __future__ import annotations

import threading

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from locking.exceptions import LockError, LockMisuse
from locking.lease.lease import Lease, State, logger


def _in_transaction() -> bool:
    """Return whether the default database is in a transaction, that of a TestCase aside."""
    blocks = connections[DEFAULT_DB_ALIAS].atomic_blocks
    return bool(blocks) and not all(getattr(block, "_from_testcase", False) for block in blocks)


def refuse_in_transaction(name: str) -> None:
    """Raise LockMisuse inside of a transaction, which would end after the lock."""
    if _in_transaction():
        raise LockMisuse(
            f"{name!r} is acquired inside a transaction: the next holder would not see what this "
            'one writes. Acquire it before the transaction, or give until="commit"; '
            'until="block" if the lock guards nothing that the transaction writes.'
        )


def release_at_commit(lease: Lease) -> bool:
    """Release when the default database's transaction ends; return False outside of one.

    Also for a lease that was handed over: it ends for its holder with the block.
    """
    if lease.state is State.HANDED_OVER or not _in_transaction():
        return False
    lease.waits_for_commit = True
    transaction.on_commit(_Release(lease).release, robust=True)
    return True


class _Release:
    """Used after a commit. Django drops it after a rollback, for which it has no callback."""

    def __init__(self, lease: Lease) -> None:
        self._leases = [lease]
        self._thread = threading.get_ident()

    def release(self) -> None:
        lease = self._leases.pop()
        try:
            lease.release()
        except LockError:
            logger.warning("Lock %s not released cleanly", lease.name, exc_info=True)

    def __del__(self) -> None:
        # The garbage collector may run in any thread, and must not wait for a store there.
        if self._leases and threading.get_ident() == self._thread:
            self.release()
