"""Ending a database session whose client does not know what the server has executed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from threading import Thread
from typing import Any

import MySQLdb
import pytest
from django.db import OperationalError, connection, connections

from devservers import HOST, MariaDb
from devservers.faults.waiting import until
from shop.platform.database.session import IDENTITY, DatabaseSession, current_session, end_session

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.only("mysql", "postgresql")]

LISTED = {
    "mysql": "SELECT COUNT(*) FROM information_schema.processlist WHERE id = %s",
    "postgresql": "SELECT COUNT(*) FROM pg_stat_activity WHERE pid = %s",
}


@pytest.fixture
def other() -> Iterator[Any]:
    """Another connection of this test."""
    made = connections.create_connection("default")
    yield made
    made.close()


def session_of(database: Any) -> DatabaseSession:
    with database.cursor() as cursor:
        cursor.execute(IDENTITY[connection.vendor])
        return DatabaseSession(*cursor.fetchone())


def is_listed(session: DatabaseSession) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(LISTED[connection.vendor], [session.id])
        return bool(cursor.fetchone()[0])


def test_session_is_killed_until_the_server_does_not_know_it(other: Any) -> None:
    session = session_of(other)
    assert session != current_session()
    assert is_listed(session)
    until(lambda: end_session(session), "the end of the session")
    assert not is_listed(session)
    with pytest.raises(OperationalError):
        session_of(other)


def test_session_in_a_transaction_is_rolled_back_first(other: Any) -> None:
    """Its row lock is free as soon as the server does not know the session any more."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE counted (n INT)")
    try:
        session = session_of(other)
        with other.cursor() as cursor:
            cursor.execute("START TRANSACTION; INSERT INTO counted VALUES (1); SELECT 1")
        until(lambda: end_session(session), "the end of the session")
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM counted FOR UPDATE NOWAIT")
            assert cursor.fetchall() in ((), [])
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE counted")


def test_same_id_after_a_restart_is_not_killed(other: Any) -> None:
    session = session_of(other)
    assert end_session(replace(session, server_start=session.server_start - 1))
    assert session_of(other) == session


def test_session_of_another_server_is_not_confirmed(other: Any) -> None:
    session = session_of(other)
    with pytest.raises(OperationalError, match="cannot be ended by"):
        end_session(replace(session, server="elsewhere:3306"))
    assert session_of(other) == session


def test_thread_keeps_no_connection(other: Any) -> None:
    session, left = session_of(other), list[object]()

    def end() -> None:
        end_session(session)
        left.append(connection.connection)

    thread = Thread(target=end)
    thread.start()
    thread.join(20)
    assert left == [None]


@pytest.mark.only("mysql")
def test_restarted_server_is_recognised() -> None:
    """Killed, so that its sessions end without a word, and started again on its data."""
    with MariaDb() as server:
        before = _identity(server)
        assert _identity(server)[1:] == before[1:]
        next_second = time.time() + 1
        until(lambda: time.time() > next_second, "a start in another second")
        server.kill()
        server.start()
        _, start, name = _identity(server)
        assert (start != before[1], name) == (True, before[2])


def _identity(server: MariaDb) -> tuple[object, ...]:
    raw = MySQLdb.connect(host=HOST, port=server.port, user="root")
    try:
        raw.query(IDENTITY["mysql"])
        (row,) = raw.store_result().fetch_row()
    finally:
        raw.close()
    return tuple(row)
