"""Django's MySQL, for a server that may fall silent: all who wait are told when one knows.

mysqlclient knows whole seconds only, and lets each statement wait for itself. Here a thread looks
at what its process waits for. When an answer is late it asks the server itself, on a connection of
its own; when that is not answered either, the server is silent: whoever waits gets an
OperationalError now, and so does who asks, until the server is heard again (the circuit breaker). A
server that is only slow answers the thread, and no statement is cut.
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

LATE = 0.2
"""Seconds after which an answer is late."""
TICK = 0.1
PATIENCE = 0.6
"""Seconds in which a server that is not silent answers the thread. The three together bound what a
statement waits for a silent one."""

TIMEOUTS = ("connect_timeout", "read_timeout", "write_timeout")

T = TypeVar("T")


class Watch:
    """What this process waits for of one server."""

    def __init__(self, server: str, params: dict[str, Any]) -> None:
        self._params = {**params, **dict.fromkeys(TIMEOUTS, 1)}
        self._silence = CircuitBreaker(f"the database at {server}", self._hear)
        self._waits: dict[object, float] = {}
        self._guard = threading.Lock()
        self._begun = threading.Event()
        self._line: PlainConnection | None = None
        threading.Thread(target=self._look, name="database-watch", daemon=True).start()

    def forget(self) -> None:
        """In a forked child: whoever held the guard is not here to let go of it."""
        self._guard = threading.Lock()

    @property
    def is_silent(self) -> bool:
        """Whether it is known to be."""
        return self._silence.is_open

    def raise_if_open(self) -> None:
        """Before something new is asked; what a cursor's end has to tidy up goes on."""
        if self.is_silent:
            raise MySQLdb.OperationalError(2006, "The database has been silent for a while")

    def ask(self, who: object, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call what waits for the server; `who` is its connection, once there is one."""
        self.begin(who)
        try:
            return call(*args, **kwargs)
        finally:
            self.end(who)

    def begin(self, who: object) -> None:
        """It waits from now on."""
        self._waits[who] = time.monotonic()
        if not self._begun.is_set():
            self._begun.set()

    def end(self, who: object) -> None:
        """It waits no longer, if it did."""
        with self._guard:
            self._waits.pop(who, None)

    def _look(self) -> None:
        if not self._answers():  # mostly it is there now, and the line is ready for when it is not
            self._silence.open()
            self._cut()
        while True:
            self._begun.wait()
            self._begun.clear()
            while self._waits:
                time.sleep(TICK)
                first = min(list(self._waits.values()), default=time.monotonic())
                if self.is_silent or (time.monotonic() - first > LATE and not self._answers()):
                    self._silence.open()
                    self._cut()

    def _answers(self) -> bool:
        """Whether the server says anything, and be it that it refuses."""
        began = time.monotonic()
        line, self._line = self._line, None
        try:
            line = line or MySQLdb.connect(**self._params)
            line.send_query(b"SELECT 1")
            poll = select.poll()
            poll.register(line, select.POLLIN)
            if poll.poll(PATIENCE * 1000):
                line.read_query_result()
                line.store_result()
                self._line = line
                return True
        except (MySQLdb.Error, OSError):
            pass
        return time.monotonic() - began < PATIENCE

    def _hear(self) -> None:
        if not self._answers():
            raise TimeoutError

    def _cut(self) -> None:
        """End all waits. Who has connected only half way ends at the connect_timeout."""
        with self._guard:  # or a connection might be closed, and its number be another's
            for who in list(self._waits):  # others begin to wait meanwhile
                number = getattr(who, "number", -1)  # else not yet connected
                with suppress(OSError), socket.socket(fileno=os.dup(number)) as end:
                    end.shutdown(socket.SHUT_RDWR)


def _watched(name: str) -> Callable[..., Any]:
    call = getattr(PlainConnection, name)

    def ask(self: "Connection", *args: Any) -> Any:
        return self.watch.ask(self, call, self, *args)

    return ask


CHARSET = "utf8mb4"


class Connection(PlainConnection):  # type: ignore[misc]
    """mysqlclient's, under watch; all it says of itself it says in one message."""

    def __init__(self, watch: Watch, *, init_command: str = "", **params: Any) -> None:
        self.watch = watch
        first = "; ".join(filter(None, [f"SET NAMES {CHARSET}", init_command]))
        super().__init__(**{**params, "charset": CHARSET, "init_command": first})
        self.number = self.fileno()  # which mysqlclient tells no other thread while it waits

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        """Only this end's: the server has been told."""
        self.encoding = "utf8"

    def query(self, query: Any) -> None:
        """Send a statement and wait for its answer."""
        self.watch.raise_if_open()
        self.watch.ask(self, super().query, query)

    def send_query(self, query: Any) -> None:
        """Send a statement; who then polls for its answer waits, too, until he reads or closes."""
        self.watch.raise_if_open()
        self.watch.begin(self)
        super().send_query(query)

    def read_query_result(self) -> None:
        """Read what `send_query` asked for."""
        try:
            super().read_query_result()
        finally:
            self.watch.end(self)

    def close(self) -> None:
        """End it, whatever it waits for."""
        self.watch.end(self)
        super().close()

    store_result, next_result, commit, rollback, autocommit, ping = map(
        _watched, ("store_result", "next_result", "commit", "rollback", "autocommit", "ping")
    )


_watches: dict[str, Watch] = {}
_making = threading.Lock()


def _server_of(params: dict[str, Any]) -> str:
    return params.get("unix_socket") or f"{params.get('host')}:{params.get('port')}"


def _watch_of(params: dict[str, Any]) -> Watch:
    server = _server_of(params)
    with _making:
        return _watches.get(server) or _watches.setdefault(server, Watch(server, params))


def _forget() -> None:
    global _making
    _making = threading.Lock()
    for watch in _watches.values():
        watch.forget()
    _watches.clear()


# Their threads stay behind: a forked child watches for itself.
after_fork_in_child(_forget)


def connect(**params: Any) -> Connection:
    """A connection whose waits are watched."""
    watch = _watch_of(params)
    watch.raise_if_open()
    return watch.ask(object(), Connection, watch, **params)


_facts: dict[str, dict[str, Any]] = {}
"""What Django wants to know of each server."""


class DatabaseWrapper(base.DatabaseWrapper):
    """The engine `shop.platform.mysql`; its `Database` makes the connections of locks, too.

    With Django's own a connection is ready after seven messages; here after the second.
    """

    Database = SimpleNamespace(**{**vars(MySQLdb), "connect": connect})

    def get_connection_params(self) -> dict[str, Any]:
        """With all that Django would say on a new connection one by one."""
        params: dict[str, Any] = super().get_connection_params()
        isolation, self.isolation_level = self.isolation_level, None
        said = [params.get("init_command")]
        if isolation:
            said.append(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation.upper()}")
        params["init_command"] = "; ".join(filter(None, said))
        return {**params, "autocommit": True}

    @cached_property
    def mysql_server_data(self) -> dict[str, Any]:
        """Asked once in a process, not on each connection."""
        server = _server_of(self.get_connection_params())
        if server not in _facts:
            _facts[server] = super().mysql_server_data
        return _facts[server]

    def get_new_connection(self, conn_params: dict[str, Any]) -> Connection:
        """A connection whose waits are watched."""
        return connect(**conn_params)
