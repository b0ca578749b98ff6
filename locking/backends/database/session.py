"""One connection of a lock backend to a database: what the kinds of databases do differently.

A lock never uses the caller's connection: the caller's transaction would hold the lock's row until
it commits, and undo the lock when it rolls back. All sessions are in autocommit mode, so each
statement is a transaction of its own.
"""

from __future__ import annotations

import math
import os
import re
import select
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, ClassVar

from locking.backends.database.sql import SQLite, Statements
from locking.claims import Claim
from locking.exceptions import LockUnavailable

RESPONSE_TIMEOUT = 5
"""Seconds in which a server must answer a statement that does not wait for a lock, unless the
database's OPTIONS give it less: see `SessionPool.open`."""
LONGEST_WAIT = 1e6
"""Seconds that one statement may wait: kernels count milliseconds in 31 bits."""
SQLITE_BUSY = {5, 6}
"""SQLITE_BUSY and SQLITE_LOCKED."""
KEEP_ALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""Seconds without traffic before the first test and between tests; tests without a reply."""

Rows = list[tuple[Any, ...]]
_inherited: list[object] = []
"""The parent's connections in a forked child, which must not be closed or deleted there."""


class RolledBack(Exception):
    """The statement was rolled back in favour of another transaction; it may be repeated."""


class ConnectionLost(Exception):
    """The connection broke before the reply: the statement may have been executed."""


class NoReply(ConnectionLost):
    """The server did not reply in time."""


class Cancelled(Exception):
    """The wait was ended by `Claim.cancel`."""


class Session(ABC):
    """One connection, for one thread at a time. Statements contain placeholders `%(name)s`."""

    sql: Statements
    """The statements of the row lock."""
    claim: Claim | None = None
    """The held lock that the session belongs to; it then does not return to the pool."""
    reply_within: float = RESPONSE_TIMEOUT
    """Seconds in which the server must answer, unless it waits for a lock; set by the pool."""

    def __init__(self, raw: Any, errors: type[Exception]) -> None:
        self.raw = raw
        self._errors = errors

    @property
    def user_locks(self) -> UserLockSession | None:
        """Return the session itself if it can have and wait for user-level locks."""
        return None

    def run(self, sql: str, values: dict[str, Any]) -> tuple[int, Rows]:
        """Run a statement; return the number of rows that it matched, and its result."""
        try:
            return self._run(sql, values)
        except self._errors as error:
            raise self.translate(error) from error

    def change(self, sql: str, **values: Any) -> int:
        """Run an INSERT, UPDATE or DELETE; return the number of rows that it matched."""
        return self.run(sql, values)[0]

    def rows(self, sql: str, **values: Any) -> Rows:
        """Return all rows of the result."""
        return self.run(sql, values)[1]

    def row(self, sql: str, **values: Any) -> tuple[Any, ...] | None:
        """Return the first row of the result, if any."""
        rows = self.run(sql, values)[1]
        return rows[0] if rows else None

    def token(self, sql: str, values: dict[str, Any]) -> int | None:
        """Run a granting statement; return its token, or None when it granted nothing."""
        rows = self.run(sql, values)[1]  # of the RETURNING clause
        return int(rows[0][0]) if rows else None

    @abstractmethod
    def _run(self, sql: str, values: dict[str, Any]) -> tuple[int, Rows]: ...

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

    def abandon(self) -> None:
        """Make sure in a forked child that dropping the session sends nothing to the server."""
        _inherited.append(self.raw)


class SQLiteSession(Session):
    """A connection to a database file of this machine."""

    sql = SQLite

    def __init__(self, raw: Any, errors: type[Exception]) -> None:
        super().__init__(raw, errors)
        raw.isolation_level = None
        # Called after the wait for the file, where a value would be behind the clock. In no Python
        # code: there SQLite turns what a signal handler raises into an error of the database.
        raw.create_function("now_ns", 0, time.time_ns)
        # Only a crash of the machine can then undo a commit, and it ends all holders too.
        raw.execute("PRAGMA synchronous = NORMAL")

    def _run(self, sql: str, values: dict[str, Any]) -> tuple[int, Rows]:
        found = self.raw.execute(_colons(sql), values)
        rows = found.fetchall()
        return int(found.rowcount), rows

    def translate(self, error: Exception) -> Exception:
        """Return RolledBack for a locked database, else LockUnavailable."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in SQLITE_BUSY:
            return RolledBack(str(error))
        return LockUnavailable(f"The database refused the statement: {error}")


@lru_cache
def _colons(sql: str) -> str:
    return re.sub(r"%\((\w+)\)s", r":\1", sql)


class UserLockSession(Session):
    """A connection to a server whose sessions can have locks with a name, and queue for them."""

    id: int
    """The number of the session on the server."""
    release_all: ClassVar[str]
    waits: ClassVar[str]
    kill_session: ClassVar[str]
    holder: ClassVar[str]
    """Returns the number of the session that has the lock `key`."""
    kill_holder: ClassVar[str]
    """Ends the session `number` if it has the lock `key`, in one statement."""

    def __init__(self, raw: Any, errors: type[Exception], response_timeout: float) -> None:
        super().__init__(raw, errors)
        self.response_timeout = response_timeout
        """The most that `reply_within` may be."""
        self._watched: select.epoll | None = None
        self._look: tuple[float, Callable[[], object]] | None = None
        self._file: int = raw.fileno()
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLIN)
        with suppress(OSError), self._socket() as connection:
            # The kernel tests an idle connection, which a router would otherwise forget.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if connection.family != socket.AF_UNIX:
                for option, value in KEEP_ALIVE.items():
                    connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def _socket(self) -> socket.socket:
        return socket.socket(fileno=os.dup(self._file))

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

    def holder_of(self, name: str) -> int | None:
        """Return the number of the session that has a user-level lock."""
        row = self.row(self.holder, key=self.key(name))
        return row[0] if row else None

    def end_holder(self, name: str, number: int | None) -> None:
        """End a session if it still has a user-level lock."""
        self.rows(self.kill_holder, key=self.key(name), number=number)

    def watch(self, watched: select.epoll) -> None:
        """Let `watched` return when the server closes the connection."""
        if self._watched is not watched:
            watched.register(self._file, select.EPOLLRDHUP | select.EPOLLET)
            self._watched = watched

    def is_ended(self) -> bool:
        """Return True if the connection was closed, on either side."""
        poll = select.poll()
        poll.register(self._file, select.POLLRDHUP)
        return bool(poll.poll(0))

    def abandon(self) -> None:
        """Also replace the child's copy of the socket with /dev/null."""
        super().abandon()
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

    def await_input(self, seconds: float) -> None:
        """Wait until the server sends something; raise NoReply after `seconds`."""
        end = time.monotonic() + seconds
        every, look = self._look or (math.inf, None)
        while not self._poll.poll(max(0, min(end - time.monotonic(), every)) * 1000):
            if look is None or time.monotonic() >= end:
                raise NoReply(f"no reply in {seconds:g} s")
            look()

    @contextmanager
    def interruptible(self, claim: Claim) -> Iterator[None]:
        """Raise Cancelled in the block when the claim is cancelled, by closing the connection."""
        # A descriptor of its own: the driver's may be closed, and be that of another connection.
        with self._socket() as connection:
            claim.interrupt = partial(_shut_down, connection)
            try:
                if claim.cancelled.is_set():
                    raise Cancelled
                yield
            except (ConnectionLost, self._errors) as error:
                if claim.cancelled.is_set():
                    raise Cancelled from None
                if isinstance(error, ConnectionLost):
                    raise
                raise self.translate(error) from error
            finally:
                claim.end_wait()
        if claim.cancelled.is_set():  # the connection is closed, perhaps after the reply
            raise Cancelled


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):  # the server has closed it
        connection.shutdown(socket.SHUT_RDWR)
