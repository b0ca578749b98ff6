"""The database backend on the shop's own database: SQLite, and MariaDB in the second pass."""

import asyncio
import gc
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections, transaction
from django.db.backends.sqlite3 import base as sqlite3
from pytest_django import DjangoDbBlocker

from devservers.faults.waiting import until
from locking import LockMisuse, locks
from locking.backends.database.backend import DatabaseBackend
from locking.backends.database.sql import SECOND, digest
from locking.claims import Claim
from locking.conf import backend_class
from locking.jobs.tasks import sweep_dead_locks
from locking.models import LockRow
from locking.testing.calls import in_thread
from tests.locking.backends.database.database_tools import DATABASE, SESSION, alias_for, database
from tests.locking.calls import store_of

pytestmark = [pytest.mark.stores, pytest.mark.django_db(transaction=True)]
HOUR = 3_600_000_000


@pytest.fixture
def backend() -> Iterator[DatabaseBackend]:
    made = database("default")
    yield made
    made.close()


def claim(name: str, owner: str, ttl: float = 30.0) -> Claim:
    return Claim(name=name, owner=owner, ttl=ttl)


@pytest.mark.only("sqlite")
def test_statement_that_waited_for_the_file_cuts_no_lease(backend: DatabaseBackend) -> None:
    """It reads the clock after the wait: an extension of that time must not be taken back."""
    held = claim("n", "me", ttl=1.0)
    backend.acquire(held, 0)
    waits, key = threading.Event(), digest("n")

    def repair(session: Any) -> None:
        waits.set()
        session.run(session.sql.repair, {"key": key})

    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        LockRow.objects.update(lock_count=1)  # locks the file
        repairing = pool.submit(backend.pool.call, repair)
        waits.wait(20)
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 0.3, "the statement waiting for the file")
        ends = time.time_ns() // 1000 + SECOND
        LockRow.objects.update(expires_at=ends)
    repairing.result(20)
    assert LockRow.objects.get(name="n").expires_at == ends


@pytest.mark.only("sqlite")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_signal_during_a_statement_is_no_error_of_the_database(backend: DatabaseBackend) -> None:
    """Ctrl-C and Celery's time limits raise in the middle of a statement, too."""

    class Interrupted(BaseException):
        """A signal came."""

    def interrupt(*args: object) -> None:
        raise Interrupted

    def read(session: Any) -> None:
        assert session.rows(session.sql.inspect), "it reads the clock for each row"
        while True:
            signal.setitimer(signal.ITIMER_REAL, 0.0002)
            again = time.monotonic() + 0.5  # Python ignores what a destructor raises, but warns
            while time.monotonic() < again:
                session.rows(session.sql.inspect)

    backend.acquire(claim("n", "me", ttl=600.0), 0)
    gc.collect()  # else a destructor of what other tests have left may be interrupted
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(300):
            with pytest.raises(Interrupted):
                backend.pool.call(read)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_sweep_deletes_expired_rows_only(backend: DatabaseBackend) -> None:
    tokens = {}
    for name, ttl in (("idle", 30), ("crashed", 0.05)):
        grant = backend.acquire(claim(name, name, ttl), 0)
        tokens[name] = grant.token
    backend.release(claim("idle", "idle"), tokens["idle"])
    until(lambda: not backend.inspect(), "the crashed holder's lease ending")
    with store_of(backend).lock("held", timeout=5):
        assert backend.sweep() == 0, "used within the hour: the next token must stay above theirs"
        LockRow.objects.update(token=1)
        LockRow.objects.exclude(name="held").update(expires_at=1)
        assert sweep_dead_locks() == 2
        assert [row.name for row in LockRow.objects.all()] == ["held"]
    with store_of(backend).lock("idle", timeout=5) as lease:
        assert lease.token > tokens["idle"]
    locks.close()


def test_end_beyond_the_lease_is_corrected(backend: DatabaseBackend) -> None:
    """What a clock that was set back leaves behind; the contract sets a real clock."""
    grant = backend.acquire(claim("future", "dead", ttl=0.2), 0)
    row = LockRow.objects.get(name="future")
    LockRow.objects.update(expires_at=row.expires_at + HOUR)
    with store_of(backend).lock("future", timeout=5) as lease:
        assert lease.token > grant.token


def test_row_expires_after_the_holders_deadline(backend: DatabaseBackend) -> None:
    """SQLite's clock reads whole milliseconds, those of the others microseconds."""
    for number in range(20):
        asked = claim(f"deadline {number}", "holder")
        ends = [backend.acquire(asked, 0).deadline, backend.extend(asked, 0, 30.0)]
        ends.append(backend.acquire(asked, 0).deadline)  # the reply of the first was lost
        epoch = time.time() - time.monotonic()
        expires_at = LockRow.objects.get(name=asked.name).expires_at / SECOND
        assert max(ends) + epoch < expires_at


@pytest.mark.only("sqlite")
def test_reservation_in_the_future_is_ignored(backend: DatabaseBackend) -> None:
    with store_of(backend).lock("turn", timeout=5):
        pass
    LockRow.objects.update(waiter="dead", waiter_until=LockRow.objects.get().token + HOUR)
    assert not store_of(backend).lock("turn").acquire(blocking=False), "the turn is taken"
    with store_of(backend).lock("turn", timeout=5):
        pass


def test_tokens_grow_while_the_clock_is_behind(backend: DatabaseBackend) -> None:
    with store_of(backend).lock("ahead", timeout=5) as lease:
        pass
    LockRow.objects.update(token=lease.token + HOUR)
    with store_of(backend).lock("ahead", timeout=5) as later:
        assert later.token == lease.token + HOUR + 1


@pytest.mark.only("sqlite")
def test_transaction_on_sqlite_is_reported_as_misuse(backend: DatabaseBackend) -> None:
    with (
        transaction.atomic(),
        pytest.raises(LockMisuse, match="before the transaction"),
        store_of(backend).lock("inside", timeout=0.1),
    ):
        pass
    with store_of(backend).lock("inside", timeout=5):
        pass


@pytest.mark.only("mysql")
def test_rollback_does_not_release_the_lock(backend: DatabaseBackend) -> None:
    lock = store_of(backend).lock("mine", until="block")
    with transaction.atomic():
        assert lock.acquire(timeout=5)
        assert LockRow.objects.filter(name="mine").exists()
        transaction.set_rollback(True)
    assert not in_thread(store_of(backend).lock("mine").acquire, False)
    lock.release()


def test_in_memory_database_is_refused() -> None:
    with alias_for("sqlite://:memory:", "memory") as alias:
        with pytest.raises(LockMisuse, match="memory"):
            database(alias).probe()
        with pytest.raises(ImproperlyConfigured, match="DATABASES"):
            database("nowhere")


def test_checks_report_bad_locations() -> None:
    def ids(path: str, location: str) -> list[str | None]:
        conf = {"BACKEND": path, "LOCATION": location}
        return [found.id for found in backend_class(conf).check("x", conf)]

    assert ids(DATABASE, "nowhere") == ids(SESSION, "nowhere") == ["locking.E051"]
    assert ids(DATABASE, "default") == []
    with alias_for("sqlite://:memory:", "memory") as alias:
        assert ids(SESSION, alias) == ["locking.E052"]
    connections.settings["alien"] = {
        **connections.settings["default"],
        "ENGINE": "django.db.backends.dummy",
    }
    try:
        assert ids(DATABASE, "alien") == ids(SESSION, "alien") == ["locking.E052"]
        with pytest.raises(ImproperlyConfigured, match="needs sqlite or mysql"):
            database("alien")
    finally:
        del connections.settings["alien"]


def test_engines_of_other_packages_are_accepted(
    tmp_path: Path, django_db_blocker: DjangoDbBlocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine as of GeoDjango or django-tenants; its own way to connect is used, too."""
    connected: list[str] = []

    class DatabaseWrapper(sqlite3.DatabaseWrapper):
        def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
            connected.append(self.alias)
            return super().get_new_connection(conn_params)

    engine = ModuleType("geography.base")
    engine.DatabaseWrapper = DatabaseWrapper
    monkeypatch.setitem(sys.modules, "geography", ModuleType("geography"))
    monkeypatch.setitem(sys.modules, "geography.base", engine)
    with alias_for(f"sqlite:///{tmp_path / 'g.sqlite3'}", "geo", django_db_blocker) as alias:
        connections.settings[alias]["ENGINE"] = "geography"
        backend = database(alias)
        with store_of(backend).lock("anywhere", timeout=5):
            pass

        async def beside_an_event_loop() -> None:
            backend.close()
            with store_of(backend).lock("anywhere", timeout=5):
                pass

        asyncio.run(beside_an_event_loop())
        assert connected == [alias, alias]
        backend.close()


@pytest.mark.only("sqlite")
def test_wait_for_a_locked_file(backend: DatabaseBackend) -> None:
    with store_of(backend).lock("warm", timeout=5):
        pass
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            held.set()
            done.wait(20)
        connection.close()

    with ThreadPoolExecutor(2) as pool:
        holder = pool.submit(hold)
        held.wait(20)
        waiter = pool.submit(store_of(backend).lock("warm").acquire, timeout=10)
        # Longer than one statement waits for the file, so that "database is locked" comes.
        assert not done.wait(1.3)
        assert not waiter.done()
        done.set()
        holder.result(20)
        assert waiter.result(20)
