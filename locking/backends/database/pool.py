"""Sessions of the lock backends in one of DATABASES: a pool, and the retry of a statement."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, OperationalError, connections

from locking.backends.circuit_breaker import CircuitBreaker
from locking.backends.database.breaker import NOT_RESPONDING, breaker_of, guarded
from locking.backends.database.mysql import MySQLSession
from locking.backends.database.postgresql import PostgreSQLSession
from locking.backends.database.session import (
    RESPONSE_TIMEOUT,
    NoReply,
    RolledBack,
    Session,
    SQLiteSession,
)
from locking.backends.database.session import ConnectionLost as Lost
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
        wrapper: Any = connections.create_connection(self.alias)
        try:
            return self.add(self._open(wrapper))
        except (wrapper.Database.Error, OperationalError, OSError, Lost, RolledBack) as error:
            raise LockUnavailable(
                f"The database {self.alias!r} cannot be reached: {error}"
            ) from error

    def _open(self, wrapper: Any) -> Session:
        errors, connect = wrapper.Database.Error, partial(guarded, self.breaker, connected, wrapper)
        if self.vendor == "sqlite" and wrapper.is_in_memory_db():
            raise LockMisuse(
                "A database in memory cannot be shared: give the lock's database a file "
                "(in tests DATABASES[...]['TEST']['NAME'])."
            )
        if self.vendor == "postgresql":
            options = {**wrapper.settings_dict["OPTIONS"], "pool": False}  # this is a pool already
            wrapper.settings_dict = {**wrapper.settings_dict, "OPTIONS": options}
        params = wrapper.get_connection_params()
        if self.vendor == "sqlite":
            return SQLiteSession(connect({**params, "timeout": ROW_LOCK_TIMEOUT}), errors)
        own = params.get("read_timeout") or params.get("tcp_user_timeout", math.inf) / 1000
        limit = max(LEAST_RESPONSE_TIMEOUT, min(own, RESPONSE_TIMEOUT))
        params = {"connect_timeout": CONNECT_TIMEOUT, **params, "autocommit": True}
        if self.vendor == "postgresql":
            params.setdefault("tcp_user_timeout", int(limit * 1000))
            return PostgreSQLSession(connect(params), errors, limit)
        params["read_timeout"] = params["write_timeout"] = math.ceil(limit)
        params["init_command"] = (
            f"SET SESSION innodb_lock_wait_timeout={ROW_LOCK_TIMEOUT}, wait_timeout={IDLE_TIMEOUT}"
        )
        return MySQLSession(connect(params), errors, limit)

    def give(self, session: Session) -> None:
        """Keep a session for the next statement, unless a lock holds it."""
        if session.claim is None:
            super().give(session)

    def call(
        self,
        work: Callable[[Session], T],
        first: Session | None = None,
        until: float = math.inf,
        reply_within: float = RESPONSE_TIMEOUT,
    ) -> T:
        """Run `work` with a session, `first` if given; repeat it once after a lost connection.

        `work` must be safe to run twice. After a rollback in favour of another transaction it is
        repeated until the monotonic time `until`, and for RESPONSE_TIMEOUT at most. The server has
        `reply_within` seconds for each statement, or less if the session says so.
        """
        lost, busy_since = 0, time.monotonic()
        while True:
            session = first or self.take() or self.open()
            first, began = None, time.monotonic()
            session.reply_within = max(LEAST_RESPONSE_TIMEOUT, reply_within)
            try:
                if self.breaker.is_open:
                    raise LockUnavailable(NOT_RESPONDING)
                result = work(session)
            except RolledBack as error:
                session.close()  # with the user-level locks that it may have
                now = time.monotonic()
                if now - began > RESPONSE_TIMEOUT:  # it waited before that
                    busy_since = now
                if now > min(until, busy_since + RESPONSE_TIMEOUT):
                    raise LockUnavailable(f"The database stayed busy: {error}") from error
            except Lost as error:
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
        if locks := session.user_locks:
            with suppress(LockError):
                self.call(lambda other: other.run(locks.kill_session, {"number": locks.id}))


def connected(wrapper: Any, params: dict[str, Any]) -> Any:
    """Return a new connection of the driver, opened as the project's engine does it."""
    connect = partial(wrapper.get_new_connection, params)
    if asyncio._get_running_loop() is None:
        return connect()
    with ThreadPoolExecutor(1) as thread:  # Django refuses to connect beside an event loop
        return thread.submit(connect).result()
