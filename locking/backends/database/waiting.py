"""How a claim waits for a row of the database backend.

SQLite: waiters look at the row every 10 to 20 ms, which locks nothing. One of them
reserves the next turn, for RESERVED_SECONDS at a time, and looks every millisecond or two: else the
holder would take it again before anybody has looked, and waiters starved.

MySQL and MariaDB have user-level locks, which queue their waiters and pass on when a session dies:

- `queue`, one per name: whoever waits takes a place there, and only its owner, the first waiter,
  contends for the row. Nobody else takes the row while the queue has an owner.
- `bell`, one per grant, taken and dropped in the very statements that take and free the row: the
  first waiter waits for it, and so is woken by the release, or when the holder's connection dies.

No message can be lost, since both are states. The row alone decides who holds the lock.
"""

from __future__ import annotations

import random
import time
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from locking.backends.base import Claim
from locking.backends.database.connections import MySQLSession, Pool, Session
from locking.backends.database.sql import Statements

SECOND = 1_000_000
POLL_SECONDS = 0.02
NEXT_POLL_SECONDS = 0.002
RESERVED_SECONDS = 0.1


class Row(NamedTuple):
    """What the store says of a name."""

    owner: str
    token: int
    left: int
    """Microseconds until it is free; not above 0 when it is."""
    ttl: int
    waiter: str
    reserved: int
    """Microseconds that `waiter` has the next turn for, if above 0."""

    @property
    def from_the_future(self) -> bool:
        """The clock was set back since it was written."""
        return self.left > self.ttl or self.reserved > RESERVED_SECONDS * SECOND


@lru_cache(1024)
def digest(text: str) -> str:
    """The key of a name."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


def bell(owner: str) -> str:
    """The user-level lock that a holder's connection has."""
    return f"bell.{digest(owner)}"


def queue(pool: Pool, name: str) -> str:
    """The user-level lock that the first waiter has; the whole server shares their names."""
    return f"queue.{digest(f'{pool.database}/{name}')}"


class Polling:
    """Look again after a while."""

    keeps = False
    """Whether the connection stays with the holder."""

    def __init__(self, sql: Statements, session: Session, claim: Claim, pool: Pool) -> None:
        self.sql = sql
        self.session = session
        self.claim = claim
        self.key = digest(claim.name)
        self.ttl = int(claim.ttl * SECOND)
        self._reserved = False

    def take(self) -> int | None:
        """The token of the grant, if the row is free."""
        owner = self.claim.owner
        return self.session.token(self.sql.take, owner, self.ttl, self.ttl, self.key, owner)

    def create(self) -> int | None:
        """The token of the first grant ever, unless somebody else was faster."""
        claim = self.claim
        return self.session.token(
            self.sql.create, self.key, claim.name, claim.owner, self.ttl, self.ttl
        )

    def read(self) -> Row | None:
        """The row; None before the first grant."""
        row = self.session.row(self.sql.read, self.key)
        return None if row is None else Row(*row)

    def wait(self, row: Row | None, seconds: float) -> None:
        """Return when taking it may succeed, or when the time is over."""
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
        """Give up, and the turn with it."""
        if self._reserved:
            self.session.change(self.sql.reserve, "", 0, self.key, self.claim.owner)


class Queueing(Polling):
    """Wait in the server. The connection is the claim's until it gives up or releases."""

    keeps = True

    def __init__(self, sql: Statements, session: Session, claim: Claim, pool: Pool) -> None:
        assert isinstance(session, MySQLSession)
        super().__init__(sql, session, claim, pool)
        self.wire = session
        self.bell = bell(claim.owner)
        self.queue = queue(pool, claim.name)
        self._first = False
        self._impatient = False
        self._heard: int | None = None

    def take(self) -> int | None:
        """In turn: not while others queue, unless the first of them seems to sleep."""
        args = (self.claim.owner, self.ttl, self.bell, self.ttl, self.key)
        if self._first or self._impatient:
            return self.session.token(self.sql.take, *args)
        return self.session.token(self.sql.take_in_turn, *args, self.queue)

    def create(self) -> int | None:
        """With the bell."""
        claim = self.claim
        return self.session.token(
            self.sql.create, self.key, claim.name, claim.owner, self.ttl, self.bell, self.ttl
        )

    def wait(self, row: Row | None, seconds: float) -> None:
        """First for the place in front, then for the holder's bell or the end of its lease."""
        end = time.monotonic() + seconds
        if not self._first:
            # A first waiter that is stopped, not dead, keeps its place: it is passed after a ttl.
            patience = min(seconds, self.claim.ttl)
            self._first = bool(self.wire.get_lock(self.claim, self.queue, patience))
            self._impatient = not self._first
            row = self.read()
        seconds = end - time.monotonic()
        if not self._first or row is None or row.left <= 0 or seconds <= 0:
            return
        if self._heard == row.token:
            # It rang, but the lock is still held: the holder has lost its connection, or died.
            self.claim.cancelled.wait(min(seconds, POLL_SECONDS, row.left / SECOND))
            return
        seconds = min(seconds, min(row.left, row.ttl) / SECOND + 0.001)
        if self.wire.get_lock(self.claim, bell(row.owner), seconds):
            self._heard = row.token

    def leave(self) -> None:
        """Give the place, and a bell, back."""
        self.session.change("DO RELEASE_ALL_LOCKS()")
