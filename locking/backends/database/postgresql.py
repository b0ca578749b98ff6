"""A connection of a lock backend to PostgreSQL: statements with bounded waits, advisory locks."""

# ruff: noqa: S608 - built from constants only

from __future__ import annotations

import math
import re
import time
from functools import lru_cache
from hashlib import blake2b
from typing import Any, cast

from locking.backends.database.session import (
    ConnectionLost,
    RolledBack,
    Rows,
    UserLockSession,
)
from locking.backends.database.sql import PostgreSQL
from locking.claims import Claim
from locking.exceptions import LockMisuse, LockUnavailable

ROW_LOCK_MS = 1000
"""Milliseconds that a statement waits for a row that another transaction has locked."""
PREPARE_AFTER = 5
"""Uses of a statement after which a session prepares it; waits are not worth it."""
# Since PostgreSQL 14, a waiter whose client was killed leaves the queue within a second, and a
# server that closes idle sessions spares those of holders. A wait ends with its own limit, not with
# that of the project's statements.
SETTINGS = {
    "lock_timeout": ROW_LOCK_MS,
    "default_transaction_isolation": "read committed",
    "client_connection_check_interval": 1000,
    "idle_session_timeout": 0,
    "statement_timeout": 0,
}
SET_UP = (
    "SELECT COUNT(set_config(name, value, FALSE)) FROM pg_settings JOIN (VALUES "
    + ", ".join(f"('{name}', '{value}')" for name, value in SETTINGS.items())
    + ") AS wanted (name, value) USING (name) WHERE pg_backend_pid() = %(number)s"
)
"""A pooler tells its clients a number of its own: then nothing is set, and the count is 0."""
MINT = "locking_next_token()"
"""The expression for a new token; a migration creates the function."""
KEY = "(classid::bigint << 32) | objid::bigint"
LOCKS = (
    "FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
WAIT = (
    "SELECT CASE WHEN CASE WHEN set_config('lock_timeout', %(ms)s, TRUE) IS NOT NULL "
    "THEN pg_advisory_lock(%(key)s)::text END = '' THEN {} END"
)
"""Wait for an advisory lock; the inner CASE sets the limit of the wait first."""
RELEASE = "SELECT pg_advisory_unlock(%(key)s)"
# https://www.postgresql.org/docs/current/errcodes-appendix.html
LOCK_TIMEOUT = "55P03"
ROLLED_BACK = {"40001", "40P01", LOCK_TIMEOUT}
# The last two concern prepared statements, which a new connection has none of.
CONNECTION_LOST = {"57P01", "57P02", "57P03", "57P05", "25P02", "26000", "42P05"}
UNDEFINED = {"42P01", "42703", "42883"}
"""Table, column, function."""
SQLSTATE = ord("C")
DONE = (1, 2)
"""The states of a result without an error: PGRES_COMMAND_OK and PGRES_TUPLES_OK."""
INTEGERS = (20, 21, 23)


class LockTimeout(RolledBack):
    """A lock stayed held for `lock_timeout`."""


class PostgreSQLSession(UserLockSession):
    """A psycopg connection without its cursor, which would wait for a reply without end."""

    sql = PostgreSQL
    release_all = "SELECT pg_advisory_unlock_all()"
    waits = f"SELECT {KEY} {LOCKS} AND NOT granted"
    kill_session = "SELECT pg_terminate_backend(%(number)s)"
    holder = f"SELECT pid {LOCKS} AND granted AND {KEY} = %(key)s"
    kill_holder = f"""SELECT pg_terminate_backend(pid) {LOCKS} AND granted AND {KEY} = %(key)s
        AND pid = %(number)s"""

    def __init__(self, raw: Any, errors: type[Exception], response_timeout: float) -> None:
        if not hasattr(raw, "pgconn"):
            raise LockMisuse("Locks on PostgreSQL need psycopg 3: pip install 'psycopg[binary]'.")
        super().__init__(raw, errors, response_timeout)
        self._pg = raw.pgconn
        self.id = int(self._pg.backend_pid)
        self._uses: dict[str, int] = {}
        """The times that each statement was sent here."""
        self.is_pooled = True
        """Another client may get this session of the server after each transaction."""
        try:
            row = self.row(SET_UP, number=self.id)
        except BaseException:
            self.close()
            raise
        self.is_pooled = row is None or row[0] == 0

    @property
    def user_locks(self) -> UserLockSession | None:
        """Return the session itself, unless a pooler may share it."""
        return None if self.is_pooled else self

    def _run(
        self, sql: str, values: dict[str, Any], seconds: float = 0, prepare: bool = True
    ) -> tuple[int, Rows]:
        pg = self._pg
        deadline = time.monotonic() + seconds + min(self.response_timeout, self.reply_within)
        name, text, names = _parsed(sql)
        given = [None if (v := values[key]) is None else str(v).encode() for key in names]
        uses = 0 if self.is_pooled or not prepare else self._uses.get(sql, 0)
        if uses == PREPARE_AFTER:
            pg.send_prepare(name, text)
            self._reply(deadline)
        self._uses[sql] = uses + 1
        if uses < PREPARE_AFTER:
            pg.send_query_params(text, given)
        else:
            pg.send_query_prepared(name, given)
        result = self._reply(deadline)
        columns = range(result.nfields)
        rows = [
            tuple([_value(result, n, column) for column in columns]) for n in range(result.ntuples)
        ]
        return int(result.command_tuples or 0), rows

    def _reply(self, deadline: float) -> Any:
        pg, done = self._pg, cast(Any, None)
        pg.flush()
        while True:
            while pg.is_busy():
                self.await_input(deadline - time.monotonic())
                pg.consume_input()
            result = pg.get_result()
            if result is None:
                break
            if done is None or result.status not in DONE:  # a commit may fail after the statement
                done = result
        if done.status in DONE:
            return done
        state = (done.error_field(SQLSTATE) or b"").decode()
        raise _error(state, done.error_message.decode(errors="replace").strip())

    def translate(self, error: Exception) -> Exception:
        """Translate by SQLSTATE."""
        return _error(getattr(error, "sqlstate", None) or "", str(error))

    @staticmethod
    @lru_cache(1024)
    def key(name: str) -> int:
        """Return 64 bits of the name's hash."""
        return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), signed=True)

    def get_lock(self, claim: Claim, name: str, seconds: float, value: str = "1") -> Any:
        """Wait for an advisory lock."""
        # Rounded up: after a wait that ends early, the waiter would send another one.
        ms = max(1, math.ceil(seconds * 1000))
        wanted = {"ms": ms, "key": self.key(name)}
        try:
            with self.interruptible(claim):
                return self._run(WAIT.format(value), wanted, ms / 1000, prepare=False)[1][0][0]
        except LockTimeout:
            # A statement that reaches its lock_timeout keeps a lock that it got at that moment.
            self.run(RELEASE, wanted)
            return None


@lru_cache
def _parsed(sql: str) -> tuple[bytes, bytes, list[str]]:
    """Return a name for the statement, its text for the server, and its arguments in order."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", sql)))
    text = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", sql).encode()
    return b"locking_" + blake2b(text, digest_size=8).hexdigest().encode(), text, names


def _value(result: Any, row: int, column: int) -> Any:
    value = result.get_value(row, column)
    if value is None:
        return None
    return int(value) if result.ftype(column) in INTEGERS else value.decode()


def _error(state: str, text: str) -> Exception:
    if state == LOCK_TIMEOUT:
        return LockTimeout(text)
    if state in ROLLED_BACK:
        return RolledBack(text)
    if not state or state.startswith("08") or state in CONNECTION_LOST:
        return ConnectionLost(text)
    if state in UNDEFINED:
        return LockMisuse(f"The tables of locks are missing, run manage.py migrate: {text}")
    return LockUnavailable(f"The database refused the statement: {text}")
