"""Sessions of the lock backends in one of DATABASES: a pool, and the retry of a statement."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, OperationalError, connections

from locking.backends.circuit_breaker import CircuitBreaker
from locking.backends.database.breaker import NOT_RESPONDING, breaker_of, guarded
from locking.backends.database.postgresql import connected
from locking.backends.database.session import (
    RESPONSE_TIMEOUT,
    ConnectionLost,
    MySQLSession,
    NoReply,
    RolledBack,
    Session,
    SQLiteSession,
)
from locking.backends.pool import IdlePool
from locking.exceptions import LockError, LockMisuse, LockUnavailable

T = TypeVar("T")

ROW_LOCK_TIMEOUT = 1
"""Seconds that a statement waits for a row or a file that another transaction has locked."""
LEAST_RESPONSE_TIMEOUT = ROW_LOCK_TIMEOUT + 0.2
"""Seconds: the server must have time to say that a row stays locked."""
CONNECT_TIMEOUT = 2
IDLE_TIMEOUT = 31_536_000
"""Seconds after which the server closes an idle session; its holder works and sends nothing."""
MAX_IDLE = 32


class SessionPool(IdlePool[Session]):
    """Idle sessions of one of DATABASES."""

    def __init__(self, alias: str) -> None:
        super().__init__(MAX_IDLE)
        self.alias = alias or DEFAULT_DB_ALIAS

    @cached_property
    def vendor(self) -> str:
        """Return mysql (MariaDB too), postgresql or sqlite."""
        return str(connections[self.alias].vendor)

    @cached_property
    def breaker(self) -> CircuitBreaker:
        """Return the circuit breaker of the server."""
        return breaker_of(connections.create_connection(self.alias))

    @property
    def database(self) -> str:
        """Return the NAME in DATABASES, which changes while Django's tests run."""
        return str(connections.settings[self.alias]["NAME"])

    def open(self) -> Session:
        """Return a new session; raise LockUnavailable after about CONNECT_TIMEOUT seconds.

        The server must reply within RESPONSE_TIMEOUT, or sooner if the database's OPTIONS say so:
        `read_timeout` of MySQL, `tcp_user_timeout` of PostgreSQL.
        """
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
            connect = partial(guarded, self.breaker, wrapper.Database.connect)
            if vendor == "sqlite":
                params["timeout"] = ROW_LOCK_TIMEOUT
                raw = connect(**params)
                raw.isolation_level = None
                for command in wrapper.init_commands:
                    raw.execute(command)
                # Only a crash of the machine can then undo a commit, and it ends all holders too.
                raw.execute("PRAGMA synchronous = NORMAL")
                return self.add(SQLiteSession(raw, errors))
            params.setdefault("connect_timeout", CONNECT_TIMEOUT)
            own = params.get("read_timeout") or params.get("tcp_user_timeout", math.inf) / 1000
            limit = max(LEAST_RESPONSE_TIMEOUT, min(own, RESPONSE_TIMEOUT))
            if vendor == "postgresql":
                return self.add(connected(connect, params, errors, limit))
            params["read_timeout"] = params["write_timeout"] = math.ceil(limit)
            params["autocommit"] = True
            params["init_command"] = (
                f"SET SESSION innodb_lock_wait_timeout={ROW_LOCK_TIMEOUT}, "
                f"wait_timeout={IDLE_TIMEOUT}"
            )
            return self.add(MySQLSession(connect(**params), errors, limit))
        except (errors, OperationalError, OSError, ConnectionLost, RolledBack) as error:
            raise LockUnavailable(
                f"The database {self.alias!r} cannot be reached: {error}"
            ) from error
        except ImproperlyConfigured as error:
            raise LockMisuse(f"DATABASES[{self.alias!r}]: {error}") from error

    def give(self, session: Session) -> None:
        """Keep a session for the next statement, unless a lock holds it."""
        if session.claim is None:
            super().give(session)

    def call(
        self, work: Callable[[Session], T], first: Session | None = None, until: float = math.inf
    ) -> T:
        """Run `work` with a session, `first` if given; repeat it once after a lost connection.

        `work` must be safe to run twice. After a rollback in favour of another transaction it is
        repeated until the monotonic time `until`, and for RESPONSE_TIMEOUT at most.
        """
        lost = 0
        rolled_back_since = last_rollback = -math.inf
        while True:
            session = first or self.take() or self.open()
            first = None
            try:
                if self.breaker.is_open:
                    raise LockUnavailable(NOT_RESPONDING)
                result = work(session)
            except RolledBack as error:
                session.close()  # with the user-level locks that it may have
                now = time.monotonic()
                if now - last_rollback > RESPONSE_TIMEOUT:
                    rolled_back_since = now
                last_rollback = now
                if now > min(until, rolled_back_since + RESPONSE_TIMEOUT):
                    raise LockUnavailable(f"The database stayed busy: {error}") from error
            except ConnectionLost as error:
                session.close()
                self.close()  # the other connections are probably lost too
                if isinstance(error, NoReply):
                    self.breaker.open()
                lost += 1
                if lost == 2:
                    raise LockUnavailable(f"The database connection broke: {error}") from error
            except LockUnavailable:
                session.close()
                self.close()  # after a failover, new connections may reach another server
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
        """End a closed session on the server now; the server checks only once a second."""

        def end(other: Session) -> None:
            if killed and other.user_locks:
                other.user_locks.kill(killed.id)

        if killed := session.user_locks:
            with suppress(LockError):
                self.call(end)
