"""Django's MySQL engine with a stall detector for servers that stop responding.

mysqlclient's time-outs are whole seconds, and each statement waits for its own. Here one thread per
server checks the waits of its process. When a reply takes longer than STALL_AFTER, the thread sends
a query on its own connection. If that gets no reply either, the server has stalled: all waits raise
OperationalError now, and new ones at once until the server responds (a circuit breaker). A server
that is only slow replies to the thread, and no statement is aborted.
"""

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import MySQLdb
from django.db.backends.mysql import base
from MySQLdb.connections import Connection as PlainConnection

from locking.backends.circuit_breaker import CircuitBreaker
from locking.fork import after_fork_in_child

STALL_AFTER = 0.2
"""Seconds after which a reply is late and the thread queries the server."""
CHECK_INTERVAL = 0.1
PROBE_TIMEOUT = 0.6
"""Seconds in which a server must reply to the thread. The sum of the three bounds the wait for a
stalled server."""

_guard = threading.Lock()
"""Held while a wait ends, so that no connection that is being aborted is closed."""


class StallDetector:
    """Watches the waits of this process for one server."""

    def __init__(self, server: str, params: dict[str, Any]) -> None:
        self._params = {**params, "connect_timeout": 1, "read_timeout": 1, "write_timeout": 1}
        self._breaker = CircuitBreaker(f"The database at {server}", self._probe)
        self._connection: PlainConnection | None = None
        self._waits: dict[Connection, float] = {}
        threading.Thread(target=self._run, name="database-stall-detector", daemon=True).start()

    def start(self, waiter: "Connection") -> None:
        """Record that `waiter` waits from now on. Raise OperationalError if the server stalled."""
        if self._breaker.is_open:
            raise MySQLdb.OperationalError(2006, "The database has not responded for a while")
        self._waits[waiter] = time.monotonic()

    def stop(self, waiter: "Connection") -> None:
        """Record that `waiter` does not wait any more."""
        with _guard:
            self._waits.pop(waiter, None)

    def _run(self) -> None:
        self._check()  # usually the server responds: the connection is ready for a later stall
        while True:
            time.sleep(CHECK_INTERVAL)
            now = time.monotonic()
            if now - min(list(self._waits.values()), default=now) > STALL_AFTER:
                self._check()

    def _check(self) -> None:
        if self._breaker.is_open or not self._responds():
            self._breaker.open()
            self.abort_waits()

    def _responds(self) -> bool:
        """Return True if the server replies, even with an error."""
        started = time.monotonic()
        connection, self._connection = self._connection, None
        with suppress(MySQLdb.Error, OSError):
            connection = connection or MySQLdb.connect(**self._params)
            connection.send_query(b"SELECT 1")
            poll = select.poll()
            poll.register(connection, select.POLLIN)
            if poll.poll(PROBE_TIMEOUT * 1000):
                connection.read_query_result()
                connection.store_result()
                self._connection = connection
                return True
        return time.monotonic() - started < PROBE_TIMEOUT

    def _probe(self) -> None:
        if not self._responds():
            raise TimeoutError

    def abort_waits(self) -> None:
        """End all waits. A connection that is being opened ends after its connect_timeout."""
        with _guard:  # no connection is closed meanwhile, so no descriptor is reused
            for waiter in list(self._waits):  # others may start to wait meanwhile
                with suppress(OSError), socket.socket(fileno=os.dup(waiter.descriptor)) as end:
                    end.shutdown(socket.SHUT_RDWR)


def _watched(name: str) -> Callable[..., Any]:
    call = getattr(PlainConnection, name)

    def watch(self: "Connection", *args: Any, **kwargs: Any) -> Any:
        self.detector.start(self)
        try:
            return call(self, *args, **kwargs)
        finally:
            self.detector.stop(self)

    return watch


class Connection(PlainConnection):  # type: ignore[misc]
    """A mysqlclient connection whose waits are watched."""

    descriptor = -1
    """Of the socket; kept, because mysqlclient does not return it while a thread waits."""

    def __init__(self, detector: StallDetector, **params: Any) -> None:
        self.detector = detector
        self._connect(**params)
        self.descriptor = self.fileno()

    _connect = _watched("__init__")

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        """Set the client's side only: the login has set the server's."""
        self.encoding = "utf8"

    def send_query(self, query: Any) -> None:
        """Send a statement; the wait for its reply ends with `read_query_result` or `close`."""
        self.detector.start(self)
        super().send_query(query)

    def close(self) -> None:
        """Close the connection in any state."""
        self.detector.stop(self)
        super().close()

    query, read_query_result, store_result, next_result = map(
        _watched, ("query", "read_query_result", "store_result", "next_result")
    )
    commit, rollback, autocommit, ping = map(_watched, ("commit", "rollback", "autocommit", "ping"))


_detectors: dict[str, StallDetector] = {}


def connect(**params: Any) -> Connection:
    """Return a connection whose waits are watched."""
    server = params.get("unix_socket") or f"{params.get('host')}:{params.get('port')}"
    with _guard:
        if server not in _detectors:
            _detectors[server] = StallDetector(server, params)
        detector = _detectors[server]
    return Connection(detector, **params)


def _reset_after_fork() -> None:
    """Drop the parent's detectors, whose threads do not exist in a forked child."""
    global _guard
    _guard = threading.Lock()
    _detectors.clear()


after_fork_in_child(_reset_after_fork)


class CursorWrapper(base.CursorWrapper):
    """A cursor that can be closed after its connection has failed."""

    def close(self) -> None:
        """Close the cursor; a lost connection has no further results to discard."""
        with suppress(MySQLdb.Error):
            self.cursor.close()


class DatabaseWrapper(base.DatabaseWrapper):
    """The engine `shop.platform.mysql`; the lock backends too connect with its `Database`."""

    Database = SimpleNamespace(**{**vars(MySQLdb), "connect": connect})

    def get_new_connection(self, conn_params: dict[str, Any]) -> Connection:
        """Return a connection whose waits are watched."""
        return connect(**conn_params)

    def create_cursor(self, name: str | None = None) -> CursorWrapper:
        """Return a cursor that can be closed after its connection has failed."""
        return CursorWrapper(self.connection.cursor())
