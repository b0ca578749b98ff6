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
from typing import Any, TypeVar

import MySQLdb
from django.db.backends.mysql import base
from django.utils.functional import cached_property
from MySQLdb.connections import Connection as PlainConnection

from locking.backends.circuit_breaker import CircuitBreaker
from locking.fork import after_fork_in_child

STALL_AFTER = 0.2
"""Seconds after which a reply is late and the thread queries the server."""
CHECK_INTERVAL = 0.1
PROBE_TIMEOUT = 0.6
"""Seconds in which a server must reply to the thread. The sum of the three bounds the wait for a
stalled server."""

TIMEOUTS = ("connect_timeout", "read_timeout", "write_timeout")
CHARSET = "utf8mb4"

T = TypeVar("T")


class StallDetector:
    """Watches the waits of this process for one server."""

    def __init__(self, server: str, params: dict[str, Any]) -> None:
        self._params = {**params, **dict.fromkeys(TIMEOUTS, 1)}
        self._breaker = CircuitBreaker(f"The database at {server}", self._probe)
        self._waits: dict[object, float] = {}
        self._guard = threading.Lock()
        self._started = threading.Event()
        self._own_connection: PlainConnection | None = None
        threading.Thread(target=self._run, name="database-stall-detector", daemon=True).start()

    def reset_after_fork(self) -> None:
        """Replace the guard in a forked child: another thread of the parent may hold it."""
        self._guard = threading.Lock()

    @property
    def is_stalled(self) -> bool:
        """Return True while the server does not respond."""
        return self._breaker.is_open

    @property
    def is_ready(self) -> bool:
        """Return True if the thread has a connection of its own."""
        return self._own_connection is not None

    def raise_if_stalled(self) -> None:
        """Raise OperationalError before a new statement while the server does not respond."""
        if self.is_stalled:
            raise MySQLdb.OperationalError(2006, "The database has not responded for a while")

    def watch(self, waiter: object, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Make a call that waits for the server; `waiter` is the connection, if it is open."""
        self.start(waiter)
        try:
            return call(*args, **kwargs)
        finally:
            self.stop(waiter)

    def start(self, waiter: object) -> None:
        """Record that `waiter` waits from now on."""
        self._waits[waiter] = time.monotonic()
        if not self._started.is_set():
            self._started.set()

    def stop(self, waiter: object) -> None:
        """Record that `waiter` does not wait any more."""
        with self._guard:
            self._waits.pop(waiter, None)

    def _run(self) -> None:
        if not self._responds():  # usually it does, and the connection is ready for a later stall
            self._breaker.open()
            self.abort_all()
        while True:
            self._started.wait()
            self._started.clear()
            while self._waits:
                time.sleep(CHECK_INTERVAL)
                now = time.monotonic()
                first = min(list(self._waits.values()), default=now)
                if self.is_stalled or (now - first > STALL_AFTER and not self._responds()):
                    self._breaker.open()
                    self.abort_all()

    def _responds(self) -> bool:
        """Return True if the server replies, even with an error."""
        started = time.monotonic()
        connection, self._own_connection = self._own_connection, None
        try:
            connection = connection or MySQLdb.connect(**self._params)
            connection.send_query(b"SELECT 1")
            poll = select.poll()
            poll.register(connection, select.POLLIN)
            if poll.poll(PROBE_TIMEOUT * 1000):
                connection.read_query_result()
                connection.store_result()
                self._own_connection = connection
                return True
        except (MySQLdb.Error, OSError):
            pass
        return time.monotonic() - started < PROBE_TIMEOUT

    def _probe(self) -> None:
        if not self._responds():
            raise TimeoutError

    def abort_all(self) -> None:
        """End all waits. A connection that is being opened ends after its connect_timeout."""
        with self._guard:  # no connection is closed meanwhile, so no descriptor is reused
            for waiter in list(self._waits):  # others may start to wait meanwhile
                descriptor = getattr(waiter, "descriptor", -1)  # -1: not connected yet
                with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as end:
                    end.shutdown(socket.SHUT_RDWR)


def _watched(name: str) -> Callable[..., Any]:
    call = getattr(PlainConnection, name)

    def watch(self: "Connection", *args: Any) -> Any:
        return self.detector.watch(self, call, self, *args)

    return watch


class Connection(PlainConnection):  # type: ignore[misc]
    """A mysqlclient connection whose waits are watched; it is set up with one message."""

    def __init__(self, detector: StallDetector, *, init_command: str = "", **params: Any) -> None:
        self.detector = detector
        setup = "; ".join(filter(None, [f"SET NAMES {CHARSET}", init_command]))
        super().__init__(**{**params, "charset": CHARSET, "init_command": setup})
        self.descriptor = self.fileno()  # mysqlclient does not return it while a thread waits

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        """Set the client's side only: `init_command` has set the server's."""
        self.encoding = "utf8"

    def query(self, query: Any) -> None:
        """Send a statement and wait for its reply."""
        self.detector.raise_if_stalled()
        self.detector.watch(self, super().query, query)

    def send_query(self, query: Any) -> None:
        """Send a statement; the wait for its reply ends with `read_query_result` or `close`."""
        self.detector.raise_if_stalled()
        self.detector.start(self)
        super().send_query(query)

    def read_query_result(self) -> None:
        """Read the reply to `send_query`."""
        try:
            super().read_query_result()
        finally:
            self.detector.stop(self)

    def close(self) -> None:
        """Close the connection in any state."""
        self.detector.stop(self)
        super().close()

    store_result, next_result, commit, rollback, autocommit, ping = map(
        _watched, ("store_result", "next_result", "commit", "rollback", "autocommit", "ping")
    )


_detectors: dict[str, StallDetector] = {}
_creating = threading.Lock()


def _server_of(params: dict[str, Any]) -> str:
    return params.get("unix_socket") or f"{params.get('host')}:{params.get('port')}"


def _detector_of(params: dict[str, Any]) -> StallDetector:
    server = _server_of(params)
    with _creating:
        if server not in _detectors:
            _detectors[server] = StallDetector(server, params)
        return _detectors[server]


def _reset_after_fork() -> None:
    """Drop the parent's detectors, whose threads do not exist in a forked child."""
    global _creating
    _creating = threading.Lock()
    for detector in _detectors.values():
        detector.reset_after_fork()
    _detectors.clear()


after_fork_in_child(_reset_after_fork)


def connect(**params: Any) -> Connection:
    """Return a connection whose waits are watched."""
    detector = _detector_of(params)
    detector.raise_if_stalled()
    return detector.watch(object(), Connection, detector, **params)


_server_data: dict[str, dict[str, Any]] = {}
"""Django's `mysql_server_data`, by server."""


class DatabaseWrapper(base.DatabaseWrapper):
    """The engine `shop.platform.mysql`; its `Database` also opens the lock backends' connections.

    Django's engine sends seven messages on a new connection, this one two.
    """

    Database = SimpleNamespace(**{**vars(MySQLdb), "connect": connect})

    def get_connection_params(self) -> dict[str, Any]:
        """Return the parameters with all settings of a new connection in one `init_command`."""
        params: dict[str, Any] = super().get_connection_params()
        isolation, self.isolation_level = self.isolation_level, None
        commands = [params.get("init_command")]
        if isolation:
            commands.append(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation.upper()}")
        params["init_command"] = "; ".join(filter(None, commands))
        return {**params, "autocommit": True}

    @cached_property
    def mysql_server_data(self) -> dict[str, Any]:
        """Return the server's version and settings, read once per process."""
        server = _server_of(self.get_connection_params())
        if server not in _server_data:
            _server_data[server] = super().mysql_server_data
        return _server_data[server]

    def get_new_connection(self, conn_params: dict[str, Any]) -> Connection:
        """Return a connection whose waits are watched."""
        return connect(**conn_params)
