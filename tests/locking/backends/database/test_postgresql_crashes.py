"""FAULTS row 15 on the locks of PostgreSQL: it is killed five times while processes write."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import Error, connection, transaction
from pytest_django import DjangoDbBlocker

from devservers import PostgreSql
from devservers.faults.waiting import until
from devservers.faults.worker import WorkerProcess, emit
from locking import LockError
from locking.handler import create
from tests.fault_rows import record_outcome
from tests.locking.backends.database.postgresql_tools import PATHS, migrated
from tests.locking.calls import store_of

TRANSACTION = "postgresql_transaction"
BACKENDS = {
    "none": "locking.backends.none.NoneBackend",
    **PATHS,
    TRANSACTION: "locking.backends.postgresql_transaction.PostgreSQLTransactionBackend",
}
KILLS, PROCESSES = 5, 3
READ, WRITE = "SELECT COUNT(*) FROM written", "INSERT INTO written VALUES (%s, %s)"


class WriterCommands:
    """A process that numbers its rows by reading how many there are."""

    def is_ready(self) -> dict[str, Any]:
        return {"ok": True}

    def write(self, store: str, stop: str) -> dict[str, Any]:
        """Write rows until the file `stop` exists; send an event for each confirmed one."""
        conf = {"BACKEND": BACKENDS[store], "LOCATION": "default", "TTL": 2.0}
        self.backend = create(store.split()[0], conf).backend
        failed = 0
        connection.close()
        while not Path(stop).exists():
            try:
                number = self.in_transaction() if store == TRANSACTION else self.under_lock()
            except (LockError, Error):
                failed += 1
                connection.close()
                time.sleep(0.02)
            else:
                emit("confirmed", number=number)
        self.backend.close()
        return {"event": "end", "failed": failed}

    def in_transaction(self) -> int:
        with (
            transaction.atomic(),
            store_of(self.backend).lock("n", timeout=5, until="commit") as lease,
        ):
            return self.number_a_row(lease.token)

    def under_lock(self) -> int:
        with store_of(self.backend).lock("n", timeout=5) as lease, transaction.atomic():
            return self.number_a_row(lease.token)

    def number_a_row(self, token: int) -> int:
        with connection.cursor() as cursor:
            cursor.execute(READ)
            number = int(cursor.fetchone()[0])
            time.sleep(0.002)  # between read and write
            cursor.execute(WRITE, [number, token])
        return number


@pytest.fixture(scope="module")
def own(django_db_blocker: DjangoDbBlocker) -> Iterator[PostgreSql]:
    with PostgreSql(config=["--fsync=off"]) as server:
        with migrated(server, "crashing", django_db_blocker):
            pass
        with psycopg.connect(server.url, autocommit=True) as session:
            session.execute("CREATE TABLE written (number bigint, token bigint)")
        yield server


@pytest.fixture(scope="module")
def writers(own: PostgreSql) -> Iterator[list[WorkerProcess]]:
    path = f"{__name__}:{WriterCommands.__name__}"
    env = {"DATABASE_URL": own.url, "DJANGO_SETTINGS_MODULE": "tests.locking.settings"}
    with ExitStack() as stack:
        started = [stack.enter_context(WorkerProcess(path, env)) for _ in range(PROCESSES)]
        for writer in started:
            assert writer.call("is_ready")["ok"]
        yield started


@pytest.mark.long
@pytest.mark.faults(row=15)
@pytest.mark.parametrize("store", BACKENDS)
def test_row_15_postgresql_killed_five_times_under_load(
    store: str, own: PostgreSql, writers: list[WorkerProcess], tmp_path: Path
) -> None:
    """No confirmed row is lost, and no number is given twice; `none` is the control."""
    stop, confirmed, failed = tmp_path / "stop", [], 0

    def receive() -> bool:
        for writer in writers:
            while not writer.is_silent(0):
                reply = writer.receive()
                confirmed.append(reply["number"])
        return True

    with psycopg.connect(own.url, autocommit=True) as session:
        session.execute("TRUNCATE written")
    for writer in writers:
        writer.send("write", store=store, stop=str(stop))
    for _ in range(KILLS):
        before = len(confirmed)
        until(lambda before=before: receive() and len(confirmed) >= before + 5, "rows")
        own.kill()
        own.start()
    before = len(confirmed)
    until(lambda: receive() and len(confirmed) >= before + 5, "rows after the last kill")
    stop.touch()
    for writer in writers:
        while (reply := writer.receive())["event"] == "confirmed":
            confirmed.append(reply["number"])
        failed += reply["failed"]
    with psycopg.connect(own.url) as session:
        rows = session.execute("SELECT number, token FROM written ORDER BY number").fetchall()
    numbers, tokens = zip(*rows, strict=True)
    assert failed, "no writer met a kill"
    record_outcome("refused or unknown", failed)
    if store == "none":
        assert len(set(numbers)) < len(numbers), "the control does not race"
        return
    assert set(confirmed) <= set(numbers), "a confirmed row is lost"
    assert list(numbers) == list(range(len(rows)))
    assert len(set(confirmed)) == len(confirmed)
    assert all(a < b for a, b in itertools.pairwise(tokens)), "tokens do not grow"
