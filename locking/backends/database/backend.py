"""A row per lock with owner, count, token and end, on the database's clock.

Acquiring and releasing are one UPDATE each. A free row stays, so that its token also grows when the
clock is set back; `sweep` deletes rows that were not used for long. Times and tokens are
microseconds since 1970 on the database's clock: a token is that time, or one more than the last.
"""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from django.db import connections
from django.utils.translation import gettext_noop

from locking.backends.database.base import DatabaseLocks
from locking.backends.database.session import (
    RESPONSE_TIMEOUT,
    Cancelled,
    Session,
    UserLockSession,
)
from locking.backends.database.sql import SECOND, digest
from locking.backends.database.waiting import (
    Polling,
    Queueing,
    Row,
    holder_lock,
    queue_lock,
    read,
)
from locking.backends.pending_releases import PendingReleases
from locking.claims import Capabilities, Claim, Grant, Held
from locking.exceptions import LockError, LockLost, LockMisuse, LockUnavailable

IDLE_SECONDS = 3600.0
"""Seconds that a row is kept after its last use: far more than a clock is ever set back."""


def with_queue(declared: Capabilities, queues: bool = True) -> Capabilities:
    """Return the capabilities on MySQL, MariaDB and PostgreSQL, or where waiters poll."""
    return replace(declared, fair=queues, wakes_waiters=queues)


def held(row: Row, waiters: int | None = None) -> Held:
    """Return the holder of a row."""
    return Held(
        name=row.name,
        owner=row.owner,
        token=row.token,
        since=row.token / SECOND,
        expires_in=row.left / SECOND,
        count=row.depth,
        waiters=waiters,
    )


class DatabaseBackend(DatabaseLocks):
    """Locks in a table of a Django database. LOCATION is an alias in DATABASES."""

    capabilities: Capabilities = Capabilities(  # type: ignore[misc]  # differs by database
        summary=gettext_noop(
            "One row per lock; needs nothing but the database. On SQLite, waiters poll."
        ),
        exclusion="machines",
        counts_in_store=True,
        expires=True,
        fencing=True,
        hands_over=True,
        lists_holders=True,
    )

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        self.capabilities = with_queue(self.capabilities, self.pool.vendor != "sqlite")
        self.pending_releases = PendingReleases()

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Acquire the row, or wait for it; see `waiting`."""
        deadline = time.monotonic() + timeout
        try:
            return self.pool.call(
                lambda session: self._acquire(session, claim, deadline), until=deadline
            )
        except Cancelled:
            return None
        except LockUnavailable:
            if self.pool.vendor == "sqlite" and connections[self.pool.alias].in_atomic_block:
                raise LockMisuse(
                    "On SQLite, acquire a lock before the transaction that it guards: this "
                    "transaction has locked the database file, and so the lock's row."
                ) from None
            raise
        except LockError:
            raise
        except BaseException:
            with suppress(LockError):
                self.release(claim, 0)
            raise

    def _acquire(self, session: Session, claim: Claim, deadline: float) -> Grant | None:
        locks = session.user_locks
        if self.capabilities.fair != (locks is not None):  # PostgreSQL is behind a pooler
            self.capabilities = with_queue(self.capabilities, locks is not None)
        own = Queueing(locks, claim, self.pool) if locks else Polling(session, claim, self.pool)
        while True:
            started = time.monotonic()
            token, row = session.token(session.sql.take, own.values), None
            if token is None:
                row = read(session, claim.name)
                if row is None:
                    token = session.token(session.sql.create, own.values)
                elif row.owner == claim.owner and row.left > 0:  # acquired, but the reply was lost
                    token = row.token
                    started += row.left / SECOND - claim.ttl
                elif row.clock_was_set_back:
                    session.run(session.sql.repair, own.values)
            if token is not None:
                if locks:  # the holder lock ends with the session
                    self.pin(locks, claim)
                return Grant(token, started + claim.ttl)
            left = deadline - time.monotonic()
            is_over = left <= 0 or claim.cancelled.is_set()
            if row is not None and row.left > 0 and is_over:
                claim.holder = held(row)
            if is_over:
                own.leave()
                return None
            if row is not None:
                own.wait(row, left)

    def release(self, claim: Claim, token: int) -> None:
        """Free the row; the same statement wakes the first waiter.

        A release without a reply is repeated in the background.
        """
        pinned = self.pinned.pop(claim.owner, None)
        attempts = itertools.count()

        def free(session: Session) -> None:
            is_retry = next(attempts) > 0
            locks = session.user_locks
            key, holder = digest(claim.name), locks and locks.key(holder_lock(claim.owner))
            if session.change(session.sql.free, key=key, owner=claim.owner, holder=holder):
                return
            found = read(session, claim.name)
            if is_retry and found and (found.owner, found.token) == ("", token):
                return  # the first attempt freed it, and its reply was lost
            # If the row was acquired since, it may have been broken before: report it as lost.
            if session is pinned:
                pinned.release_locks()
            raise claim.lost()

        def free_later() -> None:
            with suppress(LockLost):
                self.pool.call(free)

        if pinned is not None:
            pinned.claim = None
        try:
            self.pool.call(free, first=pinned)
        except LockLost:
            raise
        except BaseException:
            self.pending_releases.add(free_later, claim.ttl)
            raise

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Move the row's end, unless it has passed."""
        started = time.monotonic()
        # Without a reply in a third of it, there must be time left for another attempt.
        self._update(claim, "extend", claim.ttl / 3, ttl=int(ttl * SECOND))
        return started + ttl

    def set_depth(self, claim: Claim, token: int, depth: int) -> None:
        """Store the depth of re-entry; a depth of 0 frees the session for other locks."""
        self._update(claim, "set_depth", depth=depth)
        if depth == 0 and (session := self.pinned.pop(claim.owner, None)) is not None:
            session.claim = None
            with suppress(LockError):
                self.pool.call(UserLockSession.release_locks, first=session)  # type: ignore[arg-type]

    def take_over(self, claim: Claim, owner: str, token: int) -> Grant:
        """Continue, as `claim.owner`, the grant that `owner` handed over; raise LockLost."""
        key, ttl = digest(claim.name), int(claim.ttl * SECOND)
        values = {"key": key, "ttl": ttl, "owner": claim.owner, "sender": owner, "token": token}

        def take(session: Session) -> Grant:
            started = time.monotonic()
            if (found := session.token(session.sql.take_over, values)) is not None:
                return Grant(found, started + claim.ttl)
            row = read(session, claim.name)  # the reply of an earlier attempt may be lost
            if row is None or row.owner != claim.owner or row.left <= 0:
                raise claim.lost()
            return Grant(row.token, started + row.left / SECOND)

        return self.pool.call(take)

    def _update(
        self, claim: Claim, kind: str, reply_within: float = RESPONSE_TIMEOUT, **values: int
    ) -> None:
        def change(session: Session) -> int:
            sql = getattr(session.sql, kind)
            return session.change(sql, key=digest(claim.name), owner=claim.owner, **values)

        if not self.pool.call(change, reply_within=reply_within):
            raise claim.lost()

    def inspect(self) -> list[Held]:
        """Return every row whose end has not passed."""
        return self.pool.call(self._inspect)

    def holders(self, name: str) -> list[Held]:
        """Read one row."""
        row = self.pool.call(lambda session: read(session, name))
        return [held(row)] if row and row.left > 0 else []

    def _inspect(self, session: Session) -> list[Held]:
        rows = [Row(*row) for row in session.rows(session.sql.inspect)]
        locks = session.user_locks
        if locks is None or not rows:
            return [held(row) for row in rows]
        waits, found = locks.lock_waits(), []
        for row in rows:
            keys = locks.key(holder_lock(row.owner)), locks.key(queue_lock(self.pool, row.name))
            waiters = sum(any(str(key) in wait for key in keys) for wait in waits)
            found.append(held(row, waiters))
        return found

    def probe(self) -> None:
        """Read from the table."""
        self.pool.call(lambda session: read(session, ""))

    def break_lock(self, name: str) -> bool:
        """Free the row and wake the first waiter by ending the holder's connection."""
        if not (found := self.holders(name)):
            return False
        owner = found[0].owner

        def free(session: Session) -> None:
            session.change(session.sql.break_lock, key=digest(name), owner=owner)
            if locks := session.user_locks:
                bell = holder_lock(owner)
                with suppress(LockUnavailable):  # may need a privilege; the row is free already
                    locks.end_holder(bell, locks.holder_of(bell))

        self.pool.call(free)
        return True

    def sweep(self) -> int:
        """Delete the rows that were not used for IDLE_SECONDS; return their number.

        This includes rows of crashed holders. Each DELETE affects one row, so no caller waits long.
        """
        ttl = int(IDLE_SECONDS * SECOND)

        def delete(session: Session) -> int:
            idle = session.rows(session.sql.idle, ttl=ttl)
            return sum(session.change(session.sql.delete, key=key, ttl=ttl) for (key,) in idle)

        return self.pool.call(delete)
