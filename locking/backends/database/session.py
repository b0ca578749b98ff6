"""One connection of a lock backend to a database: what the kinds of databases do differently.

A lock never uses the caller's connection: the caller's transaction would hold the lock's row until
it commits, and undo the lock when it rolls back. All sessions are in autocommit mode, so each
statement is a transaction of its own.
"""

from __future__ import annotations

import math
import os
import select
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from locking.backends.database.sql import MySQL, SQLite, Statements
from locking.claims import Claim
from locking.exceptions import LockUnavailable

RESPONSE_TIMEOUT = 5
"""Seconds in which a server must answer a statement that does not wait for a lock, unless the
database's OPTIONS give it less: see `SessionPool.open`."""

LONGEST_WAIT = 1e6
"""Seconds that one statement may wait: kernels count milliseconds in 31 bits."""
MYSQL_ROLLED_BACK = {1205, 1213, 3058}
"""Lock wait timeout, deadlock, user-level lock deadlock."""
MYSQL_CONNECTION_LOST = {2006, 2013, 2014, 2026, 2055, 4031, 1053, 1927}
POLL_SECONDS = 0.02
"""Pause between two attempts in the part of a second that MySQL cannot wait for."""
SQLITE_BUSY = {5, 6}
"""SQLITE_BUSY and SQLITE_LOCKED."""


KEEP_ALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""Seconds without traffic before the first test and between tests; tests without a reply."""


class RolledBack(Exception):
    """The statement was rolled back in favour of another transaction; it may be repeated."""


class ConnectionLost(Exception):
    """The connection broke before the reply: the statement may have been executed."""


class NoReply(ConnectionLost):
    """The server did not reply in time."""


class Cancelled(Exception):
    """The wait was ended by `Claim.cancel`."""


class Session(ABC):
    """One connection, for one thread at a time. Statements contain `%s` placeholders."""

    sql: type[Statements]
    """The statements of the row lock."""

    def __init__(self, raw: Any, errors: type[Exception]) -> None:
        self.raw = raw
        self.reply_within: float = RESPONSE_TIMEOUT
        """Seconds in which the server must answer, unless it waits for a lock; set by the pool."""
        self.claim: Claim | None = None
        """The held lock that the session belongs to; it then does not return to the pool."""
        self._errors = errors

    @property
    def user_locks(self) -> UserLockSession | None:
        """Return the session itself if it can have and wait for user-level locks."""
        return None

    def change(self, sql: str, *args: object) -> int:
        """Run an INSERT, UPDATE or DELETE; return the number of rows that it matched."""
        try:
            return self._change(sql, args)
        except self._errors as error:
            raise self.translate(error) from error

    def row(self, sql: str, *args: object) -> tuple[Any, ...] | None:
        """Return the first row of the result, if any."""
        rows = self.rows(sql, *args)
        return rows[0] if rows else None

    def rows(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        """Return all rows of the result."""
        try:
            return self._rows(sql, args)
        except self._errors as error:
            raise self.translate(error) from error

    def token(self, sql: str, *args: object) -> int | None:
        """Run a granting statement; return its token, or None when it granted nothing."""
        row = self.row(sql, *args)  # of the RETURNING clause
        return None if row is None else int(row[0])

    @abstractmethod
    def _change(self, sql: str, args: tuple[object, ...]) -> int: ...

    @abstractmethod
    def _rows(self, sql: str, args: tuple[object, ...]) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def translate(self, error: Exception) -> Exception:
        """Return RolledBack, ConnectionLost or LockUnavailable for a driver's error."""

    def is_reusable(self) -> bool:
        """Return True: a lost connection is found by the next statement."""
        return True

    def close(self) -> None:
        """Close the connection in any state."""
        with suppress(Exception):
            self.raw.close()

    @abstractmethod
    def abandon(self) -> None:
        """Make sure in a forked child that dropping the session sends nothing to the server."""


class SQLiteSession(Session):
    """A connection to a database file of this machine."""

    sql = SQLite
    _inherited: list[Any] = []

    def __init__(self, raw: Any, errors: type[Exception]) -> None:
        super().__init__(raw, errors)
        raw.isolation_level = None
        # Only a crash of the machine can then undo a commit, and it ends all holders too.
        raw.execute("PRAGMA synchronous = NORMAL")

    def _change(self, sql: str, args: tuple[object, ...]) -> int:
        return int(self.raw.execute(sql.replace("%s", "?"), args).rowcount)

    def _rows(self, sql: str, args: tuple[object, ...]) -> list[tuple[Any, ...]]:
        return list(self.raw.execute(sql.replace("%s", "?"), args).fetchall())

    def translate(self, error: Exception) -> Exception:
        """Return RolledBack for a locked database, else LockUnavailable."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in SQLITE_BUSY:
            return RolledBack(str(error))
        return LockUnavailable(f"The database refused the statement: {error}")

    def abandon(self) -> None:
        """Keep the connection forever: SQLite forbids a child to close its parent's."""
        self._inherited.append(self.raw)


class UserLockSession(Session):
    """A connection to a server whose sessions can have locks with a name, and queue for them."""

    id: int
    """The number of the session on the server."""
    release_all: ClassVar[str]
    waits: ClassVar[str]
    holder: ClassVar[str]
    kill_session: ClassVar[str]

    def __init__(self, raw: Any, errors: type[Exception], response_timeout: float) -> None:
        super().__init__(raw, errors)
        self.response_timeout = response_timeout
        """The most that `reply_within` may be."""
        self._watched: select.epoll | None = None
        self._look: tuple[float, Callable[[], object]] | None = None
        self._file: int = raw.fileno()
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLIN)
        keep_alive(self._file)

    @property
    def response_limit(self) -> float:
        """Return the seconds in which the server must answer."""
        return min(self.response_timeout, self.reply_within)

    @property
    def user_locks(self) -> UserLockSession | None:
        """Return the session itself."""
        return self

    @staticmethod
    def key(name: str) -> int | str:
        """Return what the server's functions call the lock `name`."""
        return name

    @abstractmethod
    def get_lock(self, claim: Claim, name: str, seconds: float, value: str = "1") -> Any:
        """Wait up to `seconds` for a user-level lock; return the expression `value`, else None.

        Raises Cancelled, and leaves the session unusable, when `claim` is cancelled meanwhile;
        NoReply when the server does not reply within `seconds` and the response timeout.
        """

    def release_locks(self) -> None:
        """Release all user-level locks of this session."""
        self.change(self.release_all)

    def lock_waits(self) -> list[str]:
        """Return a text for each session that waits for a lock; it contains the lock's key."""
        return [str(found) for (found,) in self.rows(self.waits)]

    def kill_holder(self, name: str) -> bool:
        """End the connection that has a user-level lock; return False if none has it."""
        row = self.row(self.holder, self.key(name))
        if row is None or row[0] is None:
            return False
        with suppress(LockUnavailable):  # it may have ended meanwhile
            self.kill(int(row[0]))
        return True

    def kill(self, number: int) -> None:
        """End the session with this number."""
        self.change(self.kill_session, number)

    def watch(self, watched: select.epoll | None) -> None:
        """Let `watched` return when the server closes the connection."""
        if watched is not None and self._watched is not watched:
            watched.register(self._file, select.EPOLLRDHUP | select.EPOLLET)
            self._watched = watched

    def is_ended(self) -> bool:
        """Return True if the connection was closed, on either side."""
        poll = select.poll()
        poll.register(self._file, select.POLLRDHUP)
        return bool(poll.poll(0))

    def abandon(self) -> None:
        """Replace the child's copy of the socket with /dev/null."""
        with suppress(*(self._errors, OSError)):  # it is closed already
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, self.raw.fileno())
            os.close(null)

    @contextmanager
    def looking(self, every: float, look: Callable[[], object]) -> Iterator[None]:
        """Call `look` while a statement of the block waits, every so many seconds."""
        self._look = every, look
        try:
            yield
        finally:
            self._look = None

    def await_input(self, seconds: float, waker: socket.socket | None = None) -> None:
        """Wait until the server sends something; raise Cancelled when `waker` receives it first."""
        poll, end = self._poll, time.monotonic() + seconds
        if waker is not None:
            poll = select.poll()
            poll.register(self._file, select.POLLIN)
            poll.register(waker, select.POLLIN)
        every, look = self._look or (math.inf, None)
        while not (ready := poll.poll(max(0, min(end - time.monotonic(), every)) * 1000)):
            if look is None or time.monotonic() >= end:
                raise NoReply(f"no reply in {seconds:g} s")
            look()
        if waker is not None and self._file not in dict(ready):
            raise Cancelled


@contextmanager
def interruptible(claim: Claim) -> Iterator[socket.socket]:
    """Yield a socket that receives something when the claim is cancelled."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        claim.interrupt = lambda: _wake(theirs)
        try:
            if claim.cancelled.is_set():
                raise Cancelled
            yield ours
        finally:
            claim.end_wait()  # before another thread gets the socket's descriptor


def _wake(waker: socket.socket) -> None:
    with suppress(OSError):  # the wait may have ended meanwhile
        waker.send(b"!")


class MySQLSession(UserLockSession):
    """A mysqlclient connection without its cursor, which costs a fifth of a short statement."""

    sql = MySQL
    release_all = "DO RELEASE_ALL_LOCKS()"
    waits = "SELECT INFO FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'"
    holder = "SELECT IS_USED_LOCK(%s)"
    kill_session = "KILL %s"

    def __init__(self, raw: Any, errors: type[Exception], response_timeout: float) -> None:
        super().__init__(raw, errors, response_timeout)
        self.id = int(raw.thread_id())
        self._fractions = "MariaDB" in raw.get_server_info()

    def token(self, sql: str, *args: object) -> int | None:
        """Return the value of LAST_INSERT_ID(), which is part of the server's reply."""
        return int(self.raw.insert_id()) if self.change(sql, *args) else None

    def _change(self, sql: str, args: tuple[object, ...]) -> int:
        # Django connects with FOUND_ROWS: this counts rows matched, even if none changed.
        self._query(sql, args)
        return int(self.raw.affected_rows())

    def _rows(self, sql: str, args: tuple[object, ...]) -> list[tuple[Any, ...]]:
        self._query(sql, args)
        return self._result()

    def _query(
        self, sql: str, args: tuple[object, ...], seconds: float = 0, waker: Any = None
    ) -> None:
        # Not `query`: its limit is the connection's, whole seconds, and a wait may be longer.
        self.raw.send_query(self._text(sql, args))
        self.await_input(seconds + self.response_limit, waker)
        self.raw.read_query_result()

    def get_lock(self, claim: Claim, name: str, seconds: float, value: str = "1") -> Any:
        """Wait in GET_LOCK."""
        if self._fractions:
            return self._get_lock(claim, name, seconds, value)
        # MySQL rounds to whole seconds: queue for those, and poll during the rest.
        end = time.monotonic() + seconds
        found = self._get_lock(claim, name, math.floor(seconds), value)
        while found is None and (left := end - time.monotonic()) > 0:
            claim.cancelled.wait(min(left, POLL_SECONDS))
            found = self._get_lock(claim, name, 0, value)
        return found

    def _get_lock(self, claim: Claim, name: str, seconds: float, value: str) -> Any:
        with interruptible(claim) as waker:
            try:
                sql = f"SELECT IF(GET_LOCK(%s, %s) = 1, {value}, NULL)"
                self._query(sql, (name, seconds), seconds, waker)
                return self._result()[0][0]
            except self._errors as error:
                raise self.translate(error) from error

    def _text(self, sql: str, args: tuple[object, ...]) -> bytes:
        return sql.encode() % tuple(map(self.raw.literal, args))

    def _result(self) -> list[tuple[Any, ...]]:
        return list(self.raw.store_result().fetch_row(0))

    def translate(self, error: Exception) -> Exception:
        """Translate by number, see https://mariadb.com/kb/en/mariadb-error-code-reference/."""
        code = error.args[0] if error.args else 0
        if code in MYSQL_ROLLED_BACK:
            return RolledBack(str(error))
        if code in MYSQL_CONNECTION_LOST or not isinstance(code, int) or code == 0:
            return ConnectionLost(str(error))
        return LockUnavailable(f"The database refused the statement: {error}")


def keep_alive(file: int) -> None:
    """Let the kernel test an idle connection, which a router would otherwise forget."""
    with suppress(OSError), socket.socket(fileno=os.dup(file)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if connection.family != socket.AF_UNIX:
            for option, value in KEEP_ALIVE.items():
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
