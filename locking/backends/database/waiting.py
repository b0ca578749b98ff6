"""How a claim waits for a row of the database backend.

SQLite, and PostgreSQL behind a pooler that shares its sessions: waiters read the row every 10 to
20 ms, which locks nothing. One of them reserves the next turn for RESERVED_SECONDS at a time and
reads every millisecond or two. Without the reservation the holder would acquire the row again
before any waiter reads it, and waiters would starve.

MySQL and MariaDB have user-level locks, PostgreSQL calls them advisory locks: they queue their
waiters and end with their session.

- `queue`, one per name: all waiters queue for it. Only its owner, the first waiter, competes for
  the row. No other caller acquires the row while the queue lock has an owner.
- `holder`, one per grant, acquired and released by the statements that acquire and release the
  row: the first waiter waits for it. The release, or the end of the holder's connection, wakes it.

Both are states and not messages, so no wake-up can be lost. Only the row decides who holds a lock.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import Any, NamedTuple

from locking.backends.database.pool import SessionPool
from locking.backends.database.session import LONGEST_WAIT, Session, UserLockSession
from locking.backends.database.sql import SECOND, digest
from locking.claims import Claim
from locking.exceptions import LockUnavailable

POLL_SECONDS = 0.02
NEXT_POLL_SECONDS = 0.002
RESERVED_SECONDS = 0.1


class Row(NamedTuple):
    """The row of a name."""

    name: str
    owner: str
    token: int
    left: int
    """Microseconds until the row is free; 0 or less when it is."""
    ttl: int
    depth: int
    waiter: str
    reserved: int
    """Microseconds for which `waiter` has reserved the next turn, if above 0."""

    @property
    def clock_was_set_back(self) -> bool:
        """Return True if the database's clock was set back after the row was written."""
        return self.left > self.ttl or self.reserved > RESERVED_SECONDS * SECOND


def holder_lock(owner: str) -> str:
    """Return the name of the user-level lock that a holder's connection has."""
    return f"bell.{digest(owner)}"


def queue_lock(pool: SessionPool, name: str) -> str:
    """Return the name of the first waiter's user-level lock; all databases of a server share it."""
    return f"queue.{digest(f'{pool.database}/{name}')}"


def read(session: Session, name: str) -> Row | None:
    """Return the row of a name; None before its first grant."""
    row = session.row(session.sql.read, key=digest(name))
    return None if row is None else Row(*row)


class Polling:
    """Wait by reading the row again after a pause."""

    def __init__(self, session: Session, claim: Claim, pool: SessionPool) -> None:
        self.session = session
        self.claim = claim
        locks = session.user_locks
        self.values: dict[str, Any] = {
            "key": digest(claim.name),
            "name": claim.name,
            "owner": claim.owner,
            "ttl": int(claim.ttl * SECOND),
            "holder": locks and locks.key(holder_lock(claim.owner)),
            "queue": locks and locks.key(queue_lock(pool, claim.name)),
        }
        self._reserved = False

    def wait(self, row: Row, seconds: float) -> None:
        """Return when an attempt may succeed, or after `seconds`."""
        end, owner = time.monotonic() + seconds, self.claim.owner
        found: Row | None = row
        while found is not None and not self.claim.cancelled.is_set():
            mine = found.reserved > 0 and found.waiter == owner
            if found.left <= 0 and (mine or found.reserved <= 0):
                return
            if found.reserved < RESERVED_SECONDS / 2 * SECOND and (mine or found.reserved <= 0):
                mine = self._reserve(owner, RESERVED_SECONDS)
                self._reserved |= mine
            pause = random.uniform(0.5, 1) * (NEXT_POLL_SECONDS if mine else POLL_SECONDS)
            left = end - time.monotonic()
            if left <= 0:
                return
            self.claim.cancelled.wait(min(pause, left))
            found = read(self.session, self.claim.name)

    def _reserve(self, waiter: str, seconds: float) -> bool:
        values = {**self.values, "waiter": waiter, "ttl": int(seconds * SECOND)}
        return bool(self.session.run(self.session.sql.reserve, values)[0])

    def leave(self) -> None:
        """Give up the reservation."""
        if self._reserved:
            self._reserve("", 0)


class Queueing(Polling):
    """Wait in the server's queue. The session belongs to the claim until it leaves or releases."""

    session: UserLockSession

    def __init__(self, session: UserLockSession, claim: Claim, pool: SessionPool) -> None:
        super().__init__(session, claim, pool)
        self.pool = pool
        self.queue = queue_lock(pool, claim.name)
        self._first = False
        self._woken_for: int | None = None
        """Token of the grant whose holder lock this waiter got."""
        self._was_free: int | None = None
        """Last token of the row, if the last look found it free."""

    def wait(self, row: Row, seconds: float) -> None:
        """Wait for the queue lock, then for the holder lock or the end of the holder's lease."""
        end = time.monotonic() + seconds
        if not self._first:
            with self.session.looking(self.claim.ttl / 2, self._look):
                wait = min(seconds, LONGEST_WAIT)
                self._first = bool(self.session.get_lock(self.claim, self.queue, wait))
            found = read(self.session, self.claim.name)
            if not self._first or found is None:
                return
            row = found
        seconds = min(end - time.monotonic(), min(row.left, row.ttl) / SECOND + 0.001)
        if row.left <= 0 or seconds <= 0:
            return
        if self._woken_for == row.token:
            # The holder lock is free but the row is not: the holder lost its connection or died.
            self.claim.cancelled.wait(min(seconds, POLL_SECONDS))
        elif self.session.get_lock(self.claim, holder_lock(row.owner), seconds):
            self._woken_for = row.token

    def _look(self) -> None:
        """End the session of a first waiter that is stopped; it may queue again when it goes on.

        It has left the row free since the last look, half a ttl ago.
        """
        row = self.pool.call(lambda other: read(other, self.claim.name))
        free = row.token if row and row.left <= 0 else None
        if free is not None and free == self._was_free:
            self.pool.call(self._kill_first)
        self._was_free = free

    def _kill_first(self, other: Session) -> None:
        if locks := other.user_locks:
            with suppress(LockUnavailable):  # may need a privilege
                locks.end_holder(self.queue, locks.holder_of(self.queue))

    def leave(self) -> None:
        """Release the queue lock and the holder lock."""
        self.session.release_locks()
