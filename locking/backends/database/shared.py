"""Semaphores and read-write locks of PostgreSQL's sessions, from its advisory locks.

A reader shares the advisory lock that a writer has alone; the server queues both in their order.

A semaphore has an advisory lock for each slot, and one for its queue. A claim takes a free slot if
it can share the queue's lock for that statement. Otherwise it waits for the queue's lock, which
only the first waiter has, and then for a notification: a release notifies if the queue's lock is
taken. The session of a killed holder sends none, so the first waiter also tries every
RECHECK_SECONDS.
"""

# ruff: noqa: S608 - built from constants only

from __future__ import annotations

import time
from typing import Any

from locking.backends.database.postgresql import KEY, LOCKS, WAIT, PostgreSQLSession
from locking.backends.database.session import Session
from locking.claims import READER, Claim

MINT = "locking_next_token()"
"""The expression for a new token; a migration creates the function."""
RECHECK_SECONDS = 0.25
SLOT_BITS = 14
"""Low bits of a semaphore's key that number its slots, MAX_SLOTS at most."""

FREE_SLOT = "generate_series(%s::bigint, %s::bigint) AS slot WHERE"
# CASE, because PostgreSQL would otherwise try the slots before the queue's lock.
TAKE_SLOT = (
    "WITH turn AS MATERIALIZED (SELECT pg_try_advisory_xact_lock_shared(%s) AS mine) "
    f"SELECT {MINT}, slot FROM turn, {FREE_SLOT} "
    "CASE WHEN mine THEN pg_try_advisory_lock(slot) END LIMIT 1"
)
TAKE_SLOT_IN_TURN = (
    f"SELECT {MINT}, slot, pg_advisory_unlock(%s) FROM {FREE_SLOT} "
    "pg_try_advisory_lock(slot) LIMIT 1"
)
FREE_AND_NOTIFY = (
    "SELECT pg_advisory_unlock(%s)::int, CASE WHEN NOT pg_try_advisory_xact_lock_shared(%s) "
    "THEN pg_notify(%s::text, '') IS NULL END"
)
HOLDER_OF_SLOT = f"SELECT pid {LOCKS} AND granted AND {KEY} BETWEEN %s AND %s LIMIT 1"


class ReaderLock:
    """A reader's part of a read-write lock, on one session."""

    attempt = f"SELECT CASE WHEN pg_try_advisory_lock_shared(%s) THEN {MINT} END"
    wait_shared = WAIT.replace("pg_advisory_lock", "pg_advisory_lock_shared")
    free: tuple[Any, ...]
    """The statement and arguments that end the grant."""

    def __init__(self, session: PostgreSQLSession, name: str) -> None:
        self.session = session
        self.name = name
        self.key = session.key(name)
        self.free = "SELECT pg_advisory_unlock_shared(%s)::int", self.key

    def take(self) -> int | None:
        """Return a token if no writer has the lock or waits for it."""
        row = self.session.row(self.attempt, self.key)
        return row[0] if row else None

    def wait(self, claim: Claim, seconds: float) -> int | None:
        """Return a token, or None after `seconds`."""
        token: int | None = self.session.get_lock(claim, self.name, seconds, MINT, self.wait_shared)
        return token


class SlotLock(ReaderLock):
    """A slot of a semaphore, on one session."""

    def __init__(self, session: PostgreSQLSession, name: str, slots: int) -> None:
        super().__init__(session, name)
        self.queue = f"queue.{name}"
        self.queue_key = session.key(self.queue)
        self.channel = f"locking_{self.queue_key % 2**64:x}"
        first, _ = slot_keys(self.key)
        self.keys = self.queue_key, first, first + slots - 1
        self.free = FREE_AND_NOTIFY, session.slot, self.queue_key, self.channel

    def take(self, sql: str = TAKE_SLOT) -> int | None:
        """Return a token if a slot is free and no claim waits for one."""
        row = self.session.row(sql, *self.keys)
        if row is None:
            return None
        self.session.slot = row[1]
        return int(row[0])

    def wait(self, claim: Claim, seconds: float) -> int | None:
        """Wait for the place of the first waiter, then for a slot.

        Without a token, the session may still have the queue's lock.
        """
        end, session = time.monotonic() + seconds, self.session
        if not session.get_lock(claim, self.queue, seconds):
            return None
        session.change(f"LISTEN {self.channel}")
        while (token := self.take(TAKE_SLOT_IN_TURN)) is None:
            left = end - time.monotonic()
            if left <= 0:
                break
            session.await_notification(claim, min(left, RECHECK_SECONDS))
        session.change(f"UNLISTEN {self.channel}")
        return token


def slot_keys(key: int) -> tuple[int, int]:
    """Return the keys of a semaphore's first and last possible slots."""
    first = key >> SLOT_BITS << SLOT_BITS
    return first, first + 2**SLOT_BITS - 1


def kill_holder_of_slot(session: Session, name: str) -> bool:
    """End a session that has a slot of the semaphore; return False if none has one."""
    assert isinstance(session, PostgreSQLSession)
    row = session.row(HOLDER_OF_SLOT, *slot_keys(session.key(name)))
    if row is not None:
        session.kill(int(row[0]))
    return row is not None


def shared_lock(session: PostgreSQLSession, name: str, slots: int) -> ReaderLock:
    """Return the part of a claim with `slots`, READER or those of a semaphore."""
    return ReaderLock(session, name) if slots == READER else SlotLock(session, name, slots)
