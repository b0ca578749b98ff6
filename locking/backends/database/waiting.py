"""How a claim waits for a row of the database backend.

SQLite, and PostgreSQL behind a pooler that shares its sessions: waiters read the row every 10 to
20 ms, which locks nothing. One of them reserves the next turn for RESERVED_SECONDS at a time and
reads every millisecond or two. Without the reservation the holder would acquire the row again
before any waiter reads it, and waiters would starve.

MySQL and MariaDB have user-level locks, PostgreSQL calls them advisory locks: they queue their
waiters and end with their session.

- `queue_lock`, one per name: all waiters queue for it. Only its owner, the first waiter, competes
  for the row. No other caller acquires the row while the queue lock has an owner.
- `holder_lock`, one per grant, acquired and released by the statements that acquire and release the
  row: the first waiter waits for it. The release, or the end of the holder's connection, wakes it.

Both are states and not messages, so no wake-up can be lost. Only the row decides who holds a lock.
"""

from __future__ import annotations

import random
import time
from typing import NamedTuple

from locking.backends.database.pool import SessionPool
from locking.backends.database.session import LONGEST_WAIT, Session
from locking.backends.database.sql import SECOND, digest
from locking.claims import Claim

POLL_SECONDS = 0.02
NEXT_POLL_SECONDS = 0.002
RESERVED_SECONDS = 0.1


class Row(NamedTuple):
    """The row of a name."""

    owner: str
    token: int
    left: int
    """Microseconds until the row is free; 0 or less when it is."""
    ttl: int
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


class Polling:
    """Wait by reading the row again after a pause."""

    pins_session = False
    """The holder keeps the session that acquired the row."""

    def __init__(self, session: Session, claim: Claim, pool: SessionPool) -> None:
        self.sql = session.sql
        self.session = session
        self.claim = claim
        self.key = digest(claim.name)
        self.ttl = int(claim.ttl * SECOND)
        self._reserved = False

    def take(self) -> int | None:
        """Acquire the row if it is free; return the token."""
        owner = self.claim.owner
        return self.session.token(self.sql.take, owner, self.ttl, self.ttl, self.key, owner)

    def create(self) -> int | None:
        """Create the row; return the token, or None if another claim created it first."""
        claim = self.claim
        return self.session.token(
            self.sql.create, self.key, claim.name, claim.owner, self.ttl, self.ttl
        )

    def read(self) -> Row | None:
        """Return the row; None before the first grant."""
        row = self.session.row(self.sql.read, self.key)
        return None if row is None else Row(*row)

    def wait(self, row: Row | None, seconds: float) -> None:
        """Return when an attempt may succeed, or after `seconds`."""
        end = time.monotonic() + seconds
        owner = self.claim.owner
        while row is not None and not self.claim.cancelled.is_set():
            mine = row.reserved > 0 and row.waiter == owner
            if row.left <= 0 and (mine or row.reserved <= 0):
                return
            if row.reserved < RESERVED_SECONDS / 2 * SECOND and (mine or row.reserved <= 0):
                us = int(RESERVED_SECONDS * SECOND)
                mine = bool(self.session.change(self.sql.reserve, owner, us, self.key, owner))
                self._reserved |= mine
            pause = random.uniform(0.5, 1) * (NEXT_POLL_SECONDS if mine else POLL_SECONDS)
            left = end - time.monotonic()
            if left <= 0:
                return
            self.claim.cancelled.wait(min(pause, left))
            row = self.read()

    def leave(self) -> None:
        """Give up the reservation."""
        if self._reserved:
            self.session.change(self.sql.reserve, "", 0, self.key, self.claim.owner)


class Queueing(Polling):
    """Wait in the server's queue. The session belongs to the claim until it leaves or releases."""

    pins_session = True

    def __init__(self, session: Session, claim: Claim, pool: SessionPool) -> None:
        assert session.user_locks is not None
        super().__init__(session, claim, pool)
        self.pool = pool
        self.locks = session.user_locks
        self.holder_lock = self.locks.key(holder_lock(claim.owner))
        self.queue_name = queue_lock(pool, claim.name)
        self.queue_lock = self.locks.key(self.queue_name)
        self._first = False
        self._woken_for: int | None = None
        """Token of the grant whose holder lock this waiter got."""
        self._was_free: int | None = None
        """Last token of the row, if the last look found it free."""

    def take(self) -> int | None:
        """Acquire the row, in turn."""
        args = (self.claim.owner, self.ttl, self.holder_lock, self.ttl, self.key)
        if self._first:
            return self.session.token(self.sql.take, *args)
        return self.session.token(self.sql.take_in_turn, *args, self.queue_lock)

    def create(self) -> int | None:
        """Create the row together with the holder lock."""
        claim = self.claim
        return self.session.token(
            self.sql.create, self.key, claim.name, claim.owner, self.ttl, self.holder_lock, self.ttl
        )

    def wait(self, row: Row | None, seconds: float) -> None:
        """Wait for the queue lock, then for the holder lock or the end of the holder's lease."""
        end = time.monotonic() + seconds
        if not self._first:
            with self.locks.looking(self.claim.ttl / 2, self._look):
                self._first = bool(
                    self.locks.get_lock(self.claim, self.queue_name, min(seconds, LONGEST_WAIT))
                )
            row = self.read()
        seconds = end - time.monotonic()
        if not self._first or row is None or row.left <= 0 or seconds <= 0:
            return
        if self._woken_for == row.token:
            # The holder lock is free but the row is not: the holder lost its connection or died.
            self.claim.cancelled.wait(min(seconds, POLL_SECONDS, row.left / SECOND))
            return
        seconds = min(seconds, min(row.left, row.ttl) / SECOND + 0.001)
        if self.locks.get_lock(self.claim, holder_lock(row.owner), seconds):
            self._woken_for = row.token

    def _look(self) -> None:
        """End the session of a first waiter that is stopped; it may queue again when it goes on.

        It has left the row free since the last look, half a ttl ago.
        """
        row = self.pool.call(lambda other: other.row(self.sql.read, self.key))
        free = Row(*row).token if row and Row(*row).left <= 0 else None
        if free is not None and free == self._was_free:
            self.pool.call(self._kill_first)
        self._was_free = free

    def _kill_first(self, other: Session) -> None:
        if other.user_locks is not None:
            other.user_locks.kill_holder(self.queue_name)

    def leave(self) -> None:
        """Release the queue lock and the holder lock."""
        self.locks.release_locks()
