"""A private PostgreSQL as an alias in DATABASES, with the library's tables, and a pooler."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections
from pytest_django import DjangoDbBlocker

from devservers import PostgreSql
from devservers.base import injected_faults
from tests.devservers.pgbouncer import PgBouncer
from tests.locking.backends.database.database_tools import alias_for

FAULTS = ("pg_terminate_backend", "pg_reload_conf", "ALTER ROLE", "CREATE TRIGGER")
"""The statements that are faults."""


class Superuser:
    """A connection of the server's administrator."""

    def __init__(self, server: PostgreSql) -> None:
        self._connection = psycopg.connect(server.url, autocommit=True)
        self._waiting: set[tuple[int, ...]] = set()

    def __call__(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        """Run a statement and return all rows; count the statements that are faults."""
        for fault in FAULTS:
            injected_faults[fault] += fault in sql
        found = self._connection.execute(sql, args)
        return found.fetchall() if found.description else []

    def waits(self) -> int:
        """How many wait for an advisory lock."""
        sql = "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        return int(self(sql)[0][0])

    def row_waits(self) -> int:
        """How many sessions have waited for a row in the calls so far; each attempt has its own."""
        self._waiting.update(self("SELECT pid FROM pg_locks WHERE NOT granted"))
        return len(self._waiting)

    def requests(self) -> int:
        """How many statements the server has executed for others."""
        self("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        sql = "SELECT SUM(calls) FROM pg_stat_statements WHERE query NOT SIMILAR TO %s"
        return int(self(sql, "%(pg_stat_statements|pg_locks)%")[0][0])

    def kill(self, number: int) -> None:
        """End a session."""
        self("SELECT pg_terminate_backend(%s)", number)


@contextmanager
def migrated(server: PostgreSql, alias: str, blocker: DjangoDbBlocker) -> Iterator[str]:
    """An alias for the server's database with the tables of the library."""
    with alias_for(server.url, alias):
        with blocker.unblock():
            call_command("migrate", "locking", database=alias, verbosity=0)
            connections[alias].close()
        yield alias


@pytest.fixture(scope="module")
def server(postgresql: PostgreSql) -> PostgreSql:
    return postgresql


@pytest.fixture(scope="module")
def alias(server: PostgreSql, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    with migrated(server, "postgresql", django_db_blocker) as alias:
        yield alias


@pytest.fixture(scope="module")
def pooled(server: PostgreSql, alias: str) -> Iterator[str]:
    """An alias for the same database behind PgBouncer in transaction mode."""
    with PgBouncer(server) as pooler, alias_for(pooler.url, "pooled") as behind:
        yield behind
