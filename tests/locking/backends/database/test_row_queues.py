"""The row lock on MariaDB and PostgreSQL: its queue, killed servers, clocks that are set."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from pytest_django import DjangoDbBlocker

from devservers import MariaDb, PostgreSql
from devservers.faults.clock import Clock
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost
from locking.backends.database.backend import DatabaseBackend
from locking.claims import Claim
from locking.testing.calls import acquire_and_release, within
from locking.testing.contract import served
from tests.fault_rows import SLACK
from tests.locking.backends.database.database_tools import (
    DATABASE,
    Root,
    alias_for,
    database,
    short_response_timeout,
)
from tests.locking.backends.database.postgresql_tools import Superuser, migrated
from tests.locking.calls import acquired, store_of
from tests.locking.lock_worker import LockWorker

__all__ = ["short_response_timeout"]


@dataclass(frozen=True)
class Store:
    """A server with a clock of its own, and its administrator."""

    server: MariaDb | PostgreSql
    clock: Clock
    root: Root | Superuser

    def another(self) -> LockWorker:
        conf = {"BACKEND": DATABASE, "LOCATION": "default"}
        return LockWorker(conf, env={"DATABASE_URL": self.server.url})


@pytest.fixture(scope="module", params=["MariaDB", "PostgreSQL"])
def store(request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker) -> Iterator[Store]:
    if request.param == "MariaDB":
        own = MariaDb()
        clock = Clock(own.folder)
        clock.drive(own)
        with own, alias_for(own.url, "rows", django_db_blocker):
            yield Store(own, clock, Root(own))
    else:
        config = ["--fsync=off", "--shared_preload_libraries=pg_stat_statements"]
        server = PostgreSql(config=config)
        clock = Clock(server.folder)
        clock.drive(server)
        with server, migrated(server, "rows", django_db_blocker):
            yield Store(server, clock, Superuser(server))


@pytest.fixture
def backend(store: Store) -> Iterator[DatabaseBackend]:
    made = database("rows")
    yield made
    made.close()


@pytest.mark.faults(row=23, fired="contenders in line")
def test_waiters_are_granted_in_order(store: Store, backend: DatabaseBackend) -> None:
    assert served(store_of(backend), "order", 8, store.root.waits) == list(range(8))
    assert backend.capabilities.fair
    assert backend.capabilities.wakes_waiters


def test_waits_longer_than_the_ttl_keep_their_order(store: Store, backend: DatabaseBackend) -> None:
    order: list[int] = []

    def wait(place: int) -> None:
        with store_of(backend).lock("long queue", ttl=0.3, timeout=WAIT_TIMEOUT):
            order.append(place)

    with ThreadPoolExecutor(6) as pool, store_of(backend).lock("long queue", timeout=5) as lease:
        for place in range(6):
            pool.submit(wait, place)
            until(lambda size=place + 1: store.root.waits() == size, "the wait")
            pause = time.monotonic() + 0.05
            until(lambda end=pause: time.monotonic() > end, "another phase of its ttl")
        until(lambda: time.monotonic() > lease.granted_at + 1.5, "several ttls")
    assert order == list(range(6))


def test_stopped_first_waiter_is_skipped_after_a_lease(
    store: Store, backend: DatabaseBackend
) -> None:
    with store.another() as other:
        with store_of(backend).lock("stopped", timeout=5):
            other.send("acquire", name="stopped", timeout=60)
            until(lambda: store.root.waits() == 1, "the first waiter")
            other.pause()
        with within(2 + SLACK):
            assert store_of(backend).lock("stopped", ttl=1).acquire(timeout=WAIT_TIMEOUT)
        store_of(backend).lock("stopped").release()
        other.resume()
        assert other.receive()["ok"]


def test_waiters_do_not_poll(
    store: Store, backend: DatabaseBackend, short_response_timeout: None
) -> None:
    """A wait may be longer than the response timeout."""
    with store_of(backend).lock("quiet", ttl=60, timeout=5), ThreadPoolExecutor(2) as pool:
        lock = store_of(backend).lock("quiet", ttl=60)
        waits = [pool.submit(lock.acquire, timeout=3) for _ in range(2)]
        until(lambda: store.root.waits() == 2, "both waiting")
        before = store.root.requests()
        assert not any(wait.result(WAIT_TIMEOUT) for wait in waits)
        assert store.root.requests() - before <= 12


def test_question_who_holds_a_name_reads_one_row(store: Store, backend: DatabaseBackend) -> None:
    lock = store_of(backend).lock("asked", timeout=5)
    assert not lock.locked()
    with lock as lease, store_of(backend).lock("another", timeout=5):
        assert lock.locked(), "on a new connection"
        before = store.root.requests()
        assert lock.locked()
        assert store.root.requests() - before <= 1
        (found,) = backend.holders("asked")
        assert (found.owner, found.token) == (lease.owner, lease.token)


@pytest.mark.faults(row=12)
def test_row_of_a_holder_whose_session_ended_stays_held(
    store: Store, backend: DatabaseBackend
) -> None:
    lock, root = store_of(backend).lock("cut", ttl=30), store.root
    lease = acquired(lock, timeout=5)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(acquire_and_release, store_of(backend), "cut")
        until(lambda: root.waits() == 1, "the waiter")
        root.kill(backend.pinned[lease.owner].id)
        until(lambda: root.waits() == 0, "the holder lock being released")
        before = root.requests()
        until(lambda: root.requests() > before + 4, "further attempts of the waiter")
        assert not waiter.done()
        lock.release()
        assert waiter.result(WAIT_TIMEOUT)


@pytest.mark.faults(row=8, xf=True)
def test_clock_ahead_makes_two_holders(store: Store, backend: DatabaseBackend) -> None:
    """XF: the row ends early; the token tells the holders apart."""
    old, new = (Claim(name="ahead", owner=owner, ttl=30) for owner in ("old", "new"))
    first = backend.acquire(old, 5)
    store.clock.shift(60)
    second = backend.acquire(new, 0)
    store.clock.shift(0)
    assert time.monotonic() < first.deadline, "they do not overlap"
    assert second.token > first.token
    with pytest.raises(LockLost):
        backend.release(old, first.token)
    backend.release(new, second.token)
