"""GET_LOCK, a user-level lock of MySQL and MariaDB: one statement, ends with the session.

Waiters queue in the server, in order. Lock names are hashed: the server allows 64 characters,
ignores case and shares the names between its databases, so the hash includes the database's name.

Tokens are UUID_SHORT(): the server's id, the second of its start, a counter. They grow through
restarts of one server unless its clock is set back further than it ran before. After a failover
(which no GET_LOCK survives, because it is not replicated) they may be lower, and the guarded row
refuses them until the policy's epoch grows: switch the backend once.

The server must be the primary: a replica gives its own locks, to which a proxy that distributes
reads may send the next caller.
"""

from __future__ import annotations

from typing import ClassVar

from django.utils.translation import gettext_noop

from locking.backends.database.session import Session, UserLockSession
from locking.backends.database.session_locks import SessionLocks
from locking.claims import Capabilities
from locking.exceptions import LockMisuse

TOKEN = f"UUID_SHORT() & IF(@@GLOBAL.read_only OR @@GLOBAL.innodb_read_only, 0, {2**63 - 1})"
"""The mask keeps tokens of servers whose id is 128 or more in the range of a BIGINT."""
GALERA = "SHOW VARIABLES LIKE 'wsrep_on'"


class MySQLSessionBackend(SessionLocks):
    """GET_LOCK with a connection for each lock. LOCATION is an alias in DATABASES."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        summary=gettext_noop(
            "GET_LOCK: fast, queued in the server, gone with the holder's connection."
        ),
        exclusion="machines",
        session_bound=True,
        fencing=True,
        wakes_waiters=True,
    )
    vendors = ("mysql",)
    mint = TOKEN
    attempt = f"SELECT IF(GET_LOCK(%(key)s, 0) = 1, {TOKEN}, NULL)"
    free = "SELECT RELEASE_LOCK(%(key)s)"
    owns = "SELECT IS_USED_LOCK(%(key)s) = CONNECTION_ID()"
    _is_checked = False

    def checked(self, session: Session) -> UserLockSession:
        """Refuse a Galera cluster."""
        if not self._is_checked and (session.row(GALERA) or ("", "OFF"))[1] == "ON":
            raise LockMisuse(
                f"{self.alias}: the nodes of a Galera cluster do not share the locks of GET_LOCK. "
                "Use the database backend."
            )
        self._is_checked = True
        return super().checked(session)
