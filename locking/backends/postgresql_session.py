"""pg_advisory_lock, a session's lock in PostgreSQL: one statement, ends with the connection.

Tokens come from the sequence `locking_token`, which follows the clock of the server (see the
migration 0008): they also grow through a crash, a failover, a restored backup and an upgrade.
"""

from __future__ import annotations

from typing import ClassVar

from django.utils.translation import gettext_noop

from locking.backends.database.postgresql import KEY, LOCKS, MINT
from locking.backends.database.session_locks import SessionLocks
from locking.claims import Capabilities


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
    attempt = f"SELECT CASE WHEN pg_try_advisory_lock(%(key)s) THEN {mint} END"
    free = "SELECT pg_advisory_unlock(%(key)s)::int"
    owns = f"SELECT COUNT(*) {LOCKS} AND pid = pg_backend_pid() AND {KEY} = %(key)s"
