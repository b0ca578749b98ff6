"""Django's MySQL engine, whose waits a stall detector watches."""

import select
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import MySQLdb
from django.db.backends.mysql import base
from MySQLdb.connections import Connection as PlainConnection

from shop.platform.database.stall_detector import StallDetector, detector_for


def _ask(
    params: dict[str, Any], connection: PlainConnection | None, seconds: float
) -> PlainConnection:
    bounds = {"connect_timeout": 1, "read_timeout": 1, "write_timeout": 1}
    connection = connection or MySQLdb.connect(**params | bounds)
    connection.send_query(b"SELECT 1")
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    if not poll.poll(seconds * 1000):
        raise TimeoutError
    connection.read_query_result()
    connection.store_result()
    return connection


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


def connect(**params: Any) -> Connection:
    """Return a connection whose waits are watched."""
    server = params.get("unix_socket") or f"{params.get('host')}:{params.get('port')}"
    detector = detector_for(server, partial(_ask, params), MySQLdb.OperationalError)
    return Connection(detector, **params)


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
