"""A connection of a lock backend to PostgreSQL: statements with bounded waits, advisory locks."""

# ruff: noqa: S608 - built from constants only

from __future__ import annotations

import itertools
import math
import re
import time
from functools import lru_cache
from hashlib import blake2b
from typing import Any, cast

from locking.backends.database.session import (
    ConnectionLost,
    RolledBack,
    UserLockSession,
    interruptible,
)
from locking.backends.database.sql import PooledPostgreSQL, PostgreSQL
from locking.claims import Claim
from locking.exceptions import LockMisuse, LockUnavailable

ROW_LOCK_MS = 1000
"""Milliseconds that a statement waits for a row that another transaction has locked."""
LONGEST_WAIT_MS = 2**31 - 1
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
    + ") AS wanted (name, value) USING (name) WHERE pg_backend_pid() = %s"
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
    "SELECT CASE WHEN CASE WHEN set_config('lock_timeout', %s, TRUE) IS NOT NULL "
    "THEN pg_advisory_lock(%s)::text END = '' THEN {} END"
)
"""Wait for an advisory lock; the inner CASE sets the limit of the wait first."""
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

    release_all = "SELECT pg_advisory_unlock_all()"
    waits = f"SELECT {KEY} {LOCKS} AND NOT granted"
    holder = f"SELECT pid {LOCKS} AND granted AND {KEY} = %s"
    kill_session = "SELECT pg_terminate_backend(%s)"
    _inherited: list[Any] = []

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
            row = self.row(SET_UP, self.id)
        except BaseException:
            self.close()
            raise
        self.is_pooled = row is None or row[0] == 0
        self.sql = PooledPostgreSQL if self.is_pooled else PostgreSQL

    @property
    def user_locks(self) -> UserLockSession | None:
        """Return the session itself, unless a pooler may share it."""
        return None if self.is_pooled else self

    def _change(self, sql: str, args: tuple[object, ...]) -> int:
        return int(self.run(sql, args).command_tuples or 0)

    def _rows(self, sql: str, args: tuple[object, ...]) -> list[tuple[Any, ...]]:
        result = self.run(sql, args)
        columns = range(result.nfields)
        return [
            tuple([_value(result, row, column) for column in columns])
            for row in range(result.ntuples)
        ]

    def run(self, sql: str, args: tuple[object, ...], seconds: float = 0, waker: Any = None) -> Any:
        """Return the result of one statement; raise NoReply without one in time."""
        pg = self._pg
        deadline = time.monotonic() + seconds + self.response_limit
        values = [str(arg).encode() for arg in args]
        name, text = _parsed(sql)
        uses = 0 if self.is_pooled or waker else self._uses.get(sql, 0)
        if uses == PREPARE_AFTER:
            pg.send_prepare(name, text)
            self._reply(deadline, None)
        self._uses[sql] = uses + 1
        if uses < PREPARE_AFTER:
            pg.send_query_params(text, values)
        else:
            pg.send_query_prepared(name, values)
        return self._reply(deadline, waker)

    def _reply(self, deadline: float, waker: Any) -> Any:
        pg = self._pg
        pg.flush()
        done, status = cast(Any, None), 0
        while True:
            while pg.is_busy():
                self.await_input(deadline - time.monotonic(), waker)
                pg.consume_input()
            result = pg.get_result()
            if result is None:
                break
            if done is None or result.status not in DONE:  # a commit may fail after the statement
                done, status = result, result.status
        if status in DONE:
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
        ms = max(1, math.ceil(min(seconds * 1000, LONGEST_WAIT_MS)))
        with interruptible(claim) as waker:
            try:
                found = self.run(WAIT.format(value), (ms, self.key(name)), ms / 1000, waker)
                return _value(found, 0, 0)
            except LockTimeout:
                return None
            except self._errors as error:
                raise self.translate(error) from error

    def abandon(self) -> None:
        """Keep the child's copy, which would warn when it is deleted, but not its socket."""
        super().abandon()
        self._inherited.append(self.raw)


@lru_cache
def _parsed(sql: str) -> tuple[bytes, bytes]:
    numbers = itertools.count(1)
    text = re.sub("%s", lambda _: f"${next(numbers)}", sql).encode()
    return b"locking_" + blake2b(text, digest_size=8).hexdigest().encode(), text


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
