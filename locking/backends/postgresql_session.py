"""pg_advisory_lock, a session's lock in PostgreSQL: one statement, ends with the connection.

Tokens come from the sequence `locking_token`, which follows the clock of the server (see the
migration 0008): they also grow through a crash, a failover, a restored backup and an upgrade.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.utils.translation import gettext_noop

from locking.backends.database.postgresql import KEY, LOCKS, PostgreSQLSession
from locking.backends.database.session import Session, UserLockSession
from locking.backends.database.session_locks import SessionLocks
from locking.backends.database.shared import (
    MINT,
    ReaderLock,
    SlotLock,
    kill_holder_of_slot,
    shared_lock,
)
from locking.claims import WRITER, Capabilities, Claim
from locking.exceptions import LockMisuse
from locking.names import SEMAPHORE_PREFIX


class PostgreSQLSessionBackend(SessionLocks):
    """pg_advisory_lock with a connection for each lock. LOCATION is an alias in DATABASES."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        summary=gettext_noop(
            "pg_advisory_lock: fast, queued in the server, gone with the holder's connection."
        ),
        exclusion="machines",
        session_bound=True,
        fencing=True,
        tokens_outlive_failover=True,
        wakes_waiters=True,
        shared=True,
    )
    vendors = ("postgresql",)
    mint = MINT
    attempt = f"SELECT CASE WHEN pg_try_advisory_lock(%s) THEN {mint} END"
    free = "SELECT pg_advisory_unlock(%s)::int"
    owns = f"SELECT COUNT(*) {LOCKS} AND pid = pg_backend_pid() AND {KEY} = %s"

    def take(self, session: UserLockSession, claim: Claim) -> int | None:
        """Return a token if the lock, or a slot of it, is free."""
        part = self._part(session, claim)
        return part.take() if part else super().take(session, claim)

    def wait(self, session: UserLockSession, claim: Claim, seconds: float) -> int | None:
        """Return a token when the lock becomes free, or None after `seconds`."""
        part = self._part(session, claim)
        token = part.wait(claim, seconds) if part else super().wait(session, claim, seconds)
        if token is None:
            # A statement that reaches its lock_timeout keeps a lock that it got at that moment.
            session.release_locks()
        return token

    def statement(self, session: UserLockSession, claim: Claim, sql: str) -> tuple[Any, ...]:
        """Return `free` or `owns` with its arguments."""
        part = self._part(session, claim)
        if part and sql == self.free:
            return part.free
        if isinstance(part, SlotLock):
            return sql, part.session.slot
        return super().statement(session, claim, sql)

    def waiters(self, session: UserLockSession, claim: Claim, waits: list[str]) -> int:
        """Count the waits; the first waiter for a semaphore has its queue's lock."""
        part = self._part(session, claim)
        if not isinstance(part, SlotLock):
            return super().waiters(session, claim, waits)
        key = part.queue_key
        first = self.pool.call(lambda other: other.row(part.session.holder, key))
        return sum(str(key) in wait for wait in waits) + (first is not None)

    def break_lock(self, name: str) -> bool:
        """Kill a session that has the lock or a slot of it."""
        if not name.startswith(SEMAPHORE_PREFIX):
            return super().break_lock(name)
        return self.pool.call(lambda session: kill_holder_of_slot(session, self.key(name)))

    def _part(self, session: UserLockSession, claim: Claim) -> ReaderLock | None:
        """Return what differs for a reader or a semaphore; a writer has a plain lock."""
        if claim.slots is None or claim.slots == WRITER:
            return None
        assert isinstance(session, PostgreSQLSession)
        return shared_lock(session, self.key(claim.name), claim.slots)

    def checked(self, session: Session) -> UserLockSession:
        """Refuse a pooler that may give the session to another client."""
        return direct(self.alias, session)


def direct(alias: str, session: Session) -> UserLockSession:
    """Return the session; raise LockMisuse if a pooler may give it to another client."""
    if session.user_locks is None:
        raise LockMisuse(
            f"{alias}: a pooler such as PgBouncer may share the sessions of this database. "
            "Connect to PostgreSQL itself, or use the database backend."
        )
    return session.user_locks
