"""pg_advisory_lock, a session's lock in PostgreSQL: one statement, ends with the connection.

Tokens are the next numbers of the sequence `locking_token`, which a migration creates. They grow
through crashes of one server; after a failover they may repeat those that the new server lacks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from django.utils.translation import gettext_noop

from locking.backends.base import Capabilities
from locking.backends.database.postgresql import KEY, LOCKS
from locking.backends.database.session import Session
from locking.backends.mysql_session import MySQLSessionBackend, SessionLocks
from locking.exceptions import LockMisuse


class PostgreSQLSessionBackend(SessionLocks):
    """pg_advisory_lock with a connection for each lock. LOCATION is an alias in DATABASES."""

    capabilities: ClassVar[Capabilities] = replace(
        MySQLSessionBackend.capabilities,
        summary=gettext_noop(
            "pg_advisory_lock: fast, queued in the server, gone with the holder's connection."
        ),
    )
    engines = ("postgresql",)
    mint = "nextval('locking_token')"
    attempt = f"SELECT CASE WHEN pg_try_advisory_lock({{}}) THEN {mint} END"
    free = "SELECT pg_advisory_unlock({})::int"
    owns = f"SELECT COUNT(*) {LOCKS} AND pid = pg_backend_pid() AND {KEY} = {{}}"

    def refuse(self, session: Session) -> None:
        """Refuse a pooler that may give the session to another client."""
        if session.user_locks is None:
            raise LockMisuse(
                f"{self.alias}: a pooler such as PgBouncer may share the sessions of this "
                "database. Connect to PostgreSQL itself, or use the database backend."
            )
