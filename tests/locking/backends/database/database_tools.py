"""A database beside the shop's own, for tests that break its server."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import environ
from django.db import connections
from pytest_django import DjangoDbBlocker

from devservers import HOST, MariaDb
from devservers.base import injected_faults
from locking.backends.database.backend import DatabaseBackend
from locking.handler import create
from locking.models import LockRow

DATABASE = "locking.backends.database.DatabaseBackend"
SESSION = "locking.backends.mysql_session.MySQLSessionBackend"


@contextmanager
def alias_for(url: str, alias: str, blocker: DjangoDbBlocker | None = None) -> Iterator[str]:
    """An entry in DATABASES for `url`; its lock table is made where `blocker` is given."""
    entry = environ.Env.db_url_config(url)
    connections.settings.update(
        connections.configure_settings({**connections.settings, alias: entry})
    )
    if blocker is not None:
        with blocker.unblock():
            wrapper = connections.create_connection(alias)
            with wrapper.schema_editor() as editor:
                editor.create_model(LockRow)
            wrapper.close()
    try:
        yield alias
    finally:
        del connections.settings[alias]
        with suppress(AttributeError):  # unless a command connected, e.g. migrate
            del connections[alias]  # to a server that stops: the next one may get the same alias


def database(alias: str, **settings: Any) -> DatabaseBackend:
    return create("database", {"BACKEND": DATABASE, "LOCATION": alias, **settings}).backend


class Root:
    """The server's administrator."""

    def __init__(self, server: MariaDb) -> None:
        import MySQLdb  # not everywhere

        self._connection = MySQLdb.connect(
            host=HOST, port=server.port, user="root", database="shop", autocommit=True
        )
        self._sent = 0

    def __call__(self, sql: str) -> Any:
        """Run a statement and return all rows; count the statements that are faults."""
        if sql.startswith(("KILL", "SET GLOBAL", "CREATE TRIGGER", "ALTER USER")):
            injected_faults[" ".join(sql.split()[: 1 if sql.startswith("KILL") else 3])] += 1
        self._sent += 1
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall()

    def waits(self) -> int:
        """How many wait for a user-level lock."""
        sql = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'"
        return int(self(sql)[0][0])

    def status(self, name: str) -> int:
        return int(self(f"SHOW GLOBAL STATUS LIKE '{name}'")[0][1])

    def row_waits(self) -> int:
        """How many statements have waited for a row so far."""
        return self.status("Innodb_row_lock_waits")

    def kill(self, number: int) -> None:
        """End a session."""
        self(f"KILL {number}")

    def requests(self) -> int:
        """How many statements the other clients have sent, apart from a constant."""
        return self.status("Questions") - self._sent
