"""Connections of their own for the database backends: a pool, and one way to speak to each store.

Never the caller's connection: his transaction would hold the lock's row until it commits, and give
the lock back when it rolls back. All are in autocommit mode, so each statement is a transaction.
"""

from __future__ import annotations

import math
import os
import select
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.connection import ConnectionDoesNotExist

from locking.backends.base import Claim
from locking.backends.database.sql import NOW
from locking.exceptions import LockError, LockMisuse, LockUnavailable

T = TypeVar("T")

BUSY_SECONDS = 1
"""How long a statement waits for a row or a file that another transaction has locked."""
SILENCE_SECONDS = 5
"""How long a server may take to answer a statement that need not wait."""
CONNECT_SECONDS = 2
MAX_IDLE = 32

MYSQL_BUSY = {1205, 1213, 3058}
"""Lock wait timeout, deadlock, user-level lock deadlock: rolled back, try again."""
MYSQL_GONE = {2006, 2013, 2014, 2026, 2055, 4031, 1053, 1927}
"""The connection broke: the server may or may not have done what it was told."""


class Busy(Exception):
    """The statement was rolled back because of somebody else's; it may be tried again."""


class Gone(Exception):
    """The connection broke, and with it the answer: what was asked may have been done."""


class Cancelled(Exception):
    """The wait was cut short by `Claim.cancel`."""


class Session(ABC):
    """One connection, for one thread at a time. Statements are written with `%s`."""

    def __init__(self, raw: Any, errors: type[Exception]) -> None:
        self.raw = raw
        self.kept = False
        """Whether it stays with a holder instead of going back to the pool."""
        self._errors = errors

    def change(self, sql: str, *args: object) -> int:
        """Run an INSERT, UPDATE or DELETE; the number of rows that it matched."""
        try:
            return self._change(sql, args)
        except self._errors as error:
            raise self.meaning(error) from error

    def row(self, sql: str, *args: object) -> tuple[Any, ...] | None:
        """The first row of the answer."""
        rows = self.rows(sql, *args)
        return rows[0] if rows else None

    def rows(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        """All rows of the answer."""
        try:
            return self._rows(sql, args)
        except self._errors as error:
            raise self.meaning(error) from error

    @abstractmethod
    def token(self, sql: str, *args: object) -> int | None:
        """The token that a granting statement minted; None when it granted nothing."""

    @abstractmethod
    def _change(self, sql: str, args: tuple[object, ...]) -> int: ...

    @abstractmethod
    def _rows(self, sql: str, args: tuple[object, ...]) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def meaning(self, error: Exception) -> Exception:
        """Busy, Gone or LockUnavailable."""

    def close(self) -> None:
        """End the connection, whatever state it is in."""
        with suppress(Exception):
            self.raw.close()

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: make sure that dropping it says nothing to the parent's server."""


class SQLiteSession(Session):
    """A file of this machine; nobody but the file system knows who waits for it."""

    _inherited: list[Any] = []

    def token(self, sql: str, *args: object) -> int | None:
        """What the statement returns."""
        row = self.row(sql, *args)
        return None if row is None else int(row[0])

    def _change(self, sql: str, args: tuple[object, ...]) -> int:
        return int(self.raw.execute(sql.replace("%s", "?"), args).rowcount)

    def _rows(self, sql: str, args: tuple[object, ...]) -> list[tuple[Any, ...]]:
        return list(self.raw.execute(sql.replace("%s", "?"), args).fetchall())

    def meaning(self, error: Exception) -> Exception:
        """SQLITE_BUSY and SQLITE_LOCKED pass; the rest does not."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (5, 6):
            return Busy(str(error))
        return LockUnavailable(f"The database refused the statement: {error}")

    def abandon(self) -> None:
        """SQLite forbids a child even to close what its parent opened: keep it for ever."""
        self._inherited.append(self.raw)


class MySQLSession(Session):
    """mysqlclient without its cursor, which costs a fifth of a short statement."""

    def __init__(self, raw: Any, errors: type[Exception]) -> None:
        super().__init__(raw, errors)
        self.id = int(raw.thread_id())
        self._fractions = "MariaDB" in raw.get_server_info()

    def token(self, sql: str, *args: object) -> int | None:
        """What the statement gave to LAST_INSERT_ID(); it comes with the answer, at no cost."""
        return int(self.raw.insert_id()) if self.change(sql, *args) else None

    def _change(self, sql: str, args: tuple[object, ...]) -> int:
        # Django connects with FOUND_ROWS: rows matched, even if nothing in them changed.
        self.raw.query(self._text(sql, args))
        return int(self.raw.affected_rows())

    def _rows(self, sql: str, args: tuple[object, ...]) -> list[tuple[Any, ...]]:
        self.raw.query(self._text(sql, args))
        return self._result()

    def abandon(self) -> None:
        """The child's copy of the socket leads nowhere."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, self.raw.fileno())
        os.close(nowhere)

    def get_lock(self, claim: Claim, name: str, seconds: float, value: str = "1") -> Any:
        """Wait up to `seconds` for a user-level lock; `value` (an expression), None without it.

        Raises Cancelled, and leaves the connection unusable, when `claim` is cancelled meanwhile;
        Gone when the server is still silent SILENCE_SECONDS after the time that it was given.
        """
        if not self._fractions:
            seconds = math.ceil(seconds)  # MySQL knows whole seconds only
        patience = seconds + SILENCE_SECONDS
        ours, theirs = socket.socketpair()
        with ours, theirs:
            poll = select.poll()
            poll.register(self.raw, select.POLLIN)
            poll.register(ours, select.POLLIN)
            claim.interrupt = lambda: _wake(theirs)
            try:
                if claim.cancelled.is_set():
                    raise Cancelled
                # Not `query`: its read timeout is the connection's, and a wait may be longer.
                sql = f"SELECT IF(GET_LOCK(%s, %s) = 1, {value}, NULL)"
                self.raw.send_query(self._text(sql, (name, seconds)))
                ready = dict(poll.poll(patience * 1000))
                if self.raw.fileno() not in ready:
                    raise Cancelled if ready else Gone(f"no answer in {patience:g} s")
                self.raw.read_query_result()
                return self._result()[0][0]
            except self._errors as error:
                raise self.meaning(error) from error
            finally:
                claim.interrupt = None

    def has_something_to_say(self) -> bool:
        """Whether there is anything to read although nothing was asked: a last word, or the end."""
        poll = select.poll()
        try:
            poll.register(self.raw, select.POLLIN)
        except self._errors:  # it was closed on this side
            return True
        return bool(poll.poll(0))

    def _text(self, sql: str, args: tuple[object, ...]) -> bytes:
        return sql.encode() % tuple(map(self.raw.literal, args))

    def _result(self) -> list[tuple[Any, ...]]:
        return list(self.raw.store_result().fetch_row(0))

    def meaning(self, error: Exception) -> Exception:
        """By number: https://mariadb.com/kb/en/mariadb-error-code-reference/."""
        code = error.args[0] if error.args else 0
        if code in MYSQL_BUSY:
            return Busy(str(error))
        if code in MYSQL_GONE or not isinstance(code, int) or code == 0:
            return Gone(str(error))
        return LockUnavailable(f"The database refused the statement: {error}")


def _wake(wire: socket.socket) -> None:
    with suppress(OSError):  # the wait may have ended meanwhile
        wire.send(b"!")


def waiting(session: Session) -> list[str]:
    """The statements of this database's user that wait for a user-level lock on MySQL."""
    sql = "SELECT INFO FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'"
    return [str(info) for (info,) in session.rows(sql)]


class Pool:
    """Idle connections to one of DATABASES, the last used first; append and pop are atomic."""

    def __init__(self, alias: str) -> None:
        self.alias = alias or DEFAULT_DB_ALIAS
        self.idle: list[Session] = []

    @property
    def settings(self) -> dict[str, Any]:
        """The entry of DATABASES; LockMisuse when there is none."""
        try:
            entry: dict[str, Any] = connections.settings[self.alias]
        except (ConnectionDoesNotExist, KeyError, TypeError):
            raise LockMisuse(f"LOCATION {self.alias!r} is not an alias in DATABASES.") from None
        return entry

    @cached_property
    def vendor(self) -> str:
        """mysql (MariaDB too) or sqlite; LockMisuse for a database that this was not made for."""
        _ = self.settings
        vendor = str(connections[self.alias].vendor)
        if vendor not in NOW:
            raise LockMisuse(f"DATABASES[{self.alias!r}] is none of {', '.join(NOW)}: {vendor}.")
        return vendor

    @property
    def database(self) -> str:
        """The NAME in DATABASES; another one while Django's tests run."""
        return str(self.settings["NAME"])

    def open(self) -> Session:
        """A new connection; raises LockUnavailable within CONNECT_SECONDS or so."""
        vendor = self.vendor
        wrapper: Any = connections.create_connection(self.alias)
        errors = wrapper.Database.Error
        if vendor == "sqlite" and wrapper.is_in_memory_db():
            raise LockMisuse(
                "A database in memory cannot be shared: give the lock's database a file "
                "(in tests DATABASES[...]['TEST']['NAME'])."
            )
        try:
            params = wrapper.get_connection_params()
            # Not `get_new_connection`, which refuses to work in a thread with an event loop.
            connect = wrapper.Database.connect
            if vendor == "sqlite":
                params["timeout"] = BUSY_SECONDS
                raw = connect(**params)
                raw.isolation_level = None
                for command in wrapper.init_commands:
                    raw.execute(command)
                # Only a crash of the machine can undo a commit then, and with it end all holders.
                raw.execute("PRAGMA synchronous = NORMAL")
                return SQLiteSession(raw, errors)
            params.setdefault("connect_timeout", CONNECT_SECONDS)
            params["read_timeout"] = params["write_timeout"] = SILENCE_SECONDS
            params["autocommit"] = True
            params["init_command"] = f"SET SESSION innodb_lock_wait_timeout={BUSY_SECONDS}"
            return MySQLSession(connect(**params), errors)
        except (errors, OSError) as error:
            raise LockUnavailable(
                f"The database {self.alias!r} cannot be reached: {error}"
            ) from error
        except ImproperlyConfigured as error:
            raise LockMisuse(f"DATABASES[{self.alias!r}]: {error}") from error

    def take(self) -> Session:
        """An idle connection, or a new one."""
        with suppress(IndexError):
            return self.idle.pop()
        return self.open()

    def give(self, session: Session) -> None:
        """Keep a connection for the next."""
        if session.kept:
            return
        if len(self.idle) < MAX_IDLE:
            self.idle.append(session)
        else:
            session.close()

    def call(
        self, work: Callable[[Session], T], first: Session | None = None, until: float = math.inf
    ) -> T:
        """Run `work` with a connection, on `first` if given; a second time when that one broke.

        `work` must be such that doing it twice does no harm. What was rolled back for another's
        sake is tried again until the monotonic time `until` and for SILENCE_SECONDS at most.
        """
        broken = 0
        busy_since = busy_last = -math.inf
        while True:
            session = first or self.take()
            first = None
            try:
                result = work(session)
            except Busy as error:
                session.close()  # with the user-level locks that it may have
                now = time.monotonic()
                if now - busy_last > SILENCE_SECONDS:
                    busy_since = now
                busy_last = now
                if now > min(until, busy_since + SILENCE_SECONDS):
                    raise LockUnavailable(f"The database stayed busy: {error}") from error
            except Gone as error:
                session.close()
                self.close()  # what broke this one broke the others too
                broken += 1
                if broken == 2:
                    raise LockUnavailable(f"The database went away: {error}") from error
            except LockUnavailable:
                session.close()
                self.close()  # a server that refuses may no longer be the one to talk to
                raise
            except LockError:
                self.give(session)
                raise
            except BaseException:
                session.close()
                self.kill(session)
                raise
            else:
                self.give(session)
                return result

    def kill(self, session: Session) -> None:
        """Let the server end a closed connection now: it would look only once a second."""
        if isinstance(session, MySQLSession):
            with suppress(LockError):
                self.call(lambda other: other.change(f"KILL {session.id}"))

    def close(self) -> None:
        """Close what is idle."""
        while self.idle:
            with suppress(IndexError):
                self.idle.pop().close()

    def reset_after_fork(self) -> None:
        """In a forked child: drop the parent's connections without a word to the server."""
        for session in self.idle:
            session.abandon()
        self.idle = []
