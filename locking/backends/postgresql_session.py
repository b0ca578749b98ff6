"""pg_advisory_lock, a session's lock in PostgreSQL: one statement, ends with the connection.

Tokens come from the sequence `locking_token`, which follows the clock of the server (see the
migration 0008): they also grow through a crash, a failover, a restored backup and an upgrade.
"""

from __future__ import annotations

from typing import ClassVar

from django.utils.translation import gettext_noop

from locking.backends.database.postgresql import KEY, LOCKS, MINT
from locking.backends.database.session import Session, UserLockSession
from locking.backends.database.session_locks import SessionLocks
from locking.claims import Capabilities, Claim
from locking.exceptions import LockMisuse


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
    )
    vendors = ("postgresql",)
    mint = MINT
    attempt = f"SELECT CASE WHEN pg_try_advisory_lock(%s) THEN {mint} END"
    free = "SELECT pg_advisory_unlock(%s)::int"
    owns = f"SELECT COUNT(*) {LOCKS} AND pid = pg_backend_pid() AND {KEY} = %s"

    def wait(self, session: UserLockSession, claim: Claim, seconds: float) -> int | None:
        """Return a token when the lock becomes free, or None after `seconds`."""
        token = super().wait(session, claim, seconds)
        if token is None:
            # A statement that reaches its lock_timeout keeps a lock that it got at that moment.
            session.release_locks()
        return token

    def checked(self, session: Session) -> UserLockSession:
        """Refuse a pooler that may give the session to another client."""
        if session.user_locks is None:
            raise LockMisuse(
                f"{self.alias}: a pooler such as PgBouncer may share this database's sessions. "
                "Connect to PostgreSQL itself, or use the database backend."
            )
        return session.user_locks
