"""A connection of a lock backend to MySQL or MariaDB: statements with bounded waits, GET_LOCK."""

from __future__ import annotations

import re
import time
from functools import lru_cache
from typing import Any

from locking.backends.database.session import ConnectionLost, RolledBack, Rows, UserLockSession
from locking.backends.database.sql import MySQL
from locking.claims import Claim
from locking.exceptions import LockUnavailable

ROLLED_BACK = {1020, 1205, 1213, 3058}
"""Changed since the snapshot (innodb_snapshot_isolation), lock wait timeout, deadlock, deadlock of
user-level locks."""
CONNECTION_LOST = {0, 2006, 2013, 2014, 2026, 2055, 4031, 1053, 1927}
NO_SUCH_SESSION = 1094
POLL_SECONDS = 0.02
"""Pause between two attempts in the part of a second that MySQL cannot wait for."""


class MySQLSession(UserLockSession):
    """A mysqlclient connection without its cursor, which costs a fifth of a short statement."""

    sql = MySQL
    release_all = "DO RELEASE_ALL_LOCKS()"
    waits = "SELECT INFO FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'"
    kill_session = "KILL %(number)s"
    holder = "SELECT IS_USED_LOCK(%(key)s)"
    kill_holder = "KILL IF(IS_USED_LOCK(%(key)s) = %(number)s, %(number)s, 0)"

    def __init__(self, raw: Any, errors: type[Exception], response_timeout: float) -> None:
        super().__init__(raw, errors, response_timeout)
        self.id = int(raw.thread_id())
        self._fractions = "MariaDB" in raw.get_server_info()

    def token(self, sql: str, values: dict[str, Any]) -> int | None:
        """Return the value of LAST_INSERT_ID(), which is part of the server's reply."""
        return int(self.raw.insert_id()) if self.run(sql, values)[0] else None

    def _run(self, sql: str, values: dict[str, Any], seconds: float = 0) -> tuple[int, Rows]:
        # Not `query`: its limit is the connection's, whole seconds, and a wait may be longer.
        text, names = _parsed(sql)
        self.raw.send_query(text % tuple([self.raw.literal(values[name]) for name in names]))
        self.await_input(seconds + min(self.response_timeout, self.reply_within))
        self.raw.read_query_result()
        result = self.raw.store_result()
        # Django connects with FOUND_ROWS: this counts rows matched, even if none changed.
        return int(self.raw.affected_rows()), list(result.fetch_row(0)) if result else []

    def get_lock(self, claim: Claim, name: str, seconds: float, value: str = "1") -> Any:
        """Wait in GET_LOCK."""
        sql = f"SELECT IF(GET_LOCK(%(name)s, %(wait)s) = 1, {value}, NULL)"
        # MySQL rounds to whole seconds: queue for those, and poll during the rest.
        end, wait = time.monotonic() + seconds, seconds if self._fractions else seconds // 1
        while True:
            with self.interruptible(claim):
                [(found,)] = self._run(sql, {"name": name, "wait": wait}, wait)[1]
            left = end - time.monotonic()
            if found is not None or self._fractions or left <= 0:
                return found
            claim.cancelled.wait(min(left, POLL_SECONDS))
            wait = 0

    def end_holder(self, name: str, number: int | None) -> None:
        """End a session if it still has a user-level lock."""
        try:
            self._run(self.kill_holder, {"key": name, "number": number})
        except self._errors as error:
            if error.args[0] != NO_SUCH_SESSION:
                raise self.translate(error) from error

    def translate(self, error: Exception) -> Exception:
        """Translate by number, see https://mariadb.com/kb/en/mariadb-error-code-reference/."""
        code = error.args[0] if error.args else 0
        if code in ROLLED_BACK:
            return RolledBack(str(error))
        if code in CONNECTION_LOST or not isinstance(code, int):
            return ConnectionLost(str(error))
        return LockUnavailable(f"The database refused the statement: {error}")


@lru_cache
def _parsed(sql: str) -> tuple[bytes, list[str]]:
    names = re.findall(r"%\((\w+)\)s", sql)
    return re.sub(r"%\(\w+\)s", "%s", sql).encode(), names
