"""Both locks on a PostgreSQL that is replaced, or whose clock or disk fails: FAULTS 4, 8 and 17."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pytest_django import DjangoDbBlocker

from devservers import PostgreSql
from devservers.faults.clock import Clock
from devservers.faults.full_disk import FullDisk
from devservers.faults.standby import Standby
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockError, LockUnavailable
from locking.claims import Claim
from locking.testing.calls import acquire_and_release, within
from tests.fault_rows import SLACK
from tests.locking.backends.database.database_tools import alias_for
from tests.locking.backends.database.postgresql_tools import (
    BOTH,
    ROW_LOCK,
    SESSION_LOCK,
    Made,
    Superuser,
    made,
    migrated,
)
from tests.locking.calls import store_of

__all__ = ["made"]


class Driven(PostgreSql):
    """A server with a clock and a disk of its own."""

    def __init__(self) -> None:
        super().__init__(config=["--fsync=off"])
        self.clock, self.disk = Clock(self.folder), FullDisk(self, "base")
        self.clock.drive(self)


@pytest.fixture(scope="module")
def own() -> Iterator[Driven]:
    with Driven() as server:
        yield server


@pytest.fixture(scope="module")
def running(own: Driven, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """The server's alias."""
    with migrated(own, "own", django_db_blocker) as alias:
        yield alias


@pytest.fixture
def primary(own: Driven, running: str) -> Iterator[str]:
    """The alias of the server, which starts again after a test that kills it."""
    yield running
    own.start()


@pytest.fixture
def clock(own: Driven) -> Iterator[Clock]:
    yield own.clock
    own.clock.shift(0)


@pytest.fixture
def disk(own: Driven) -> Iterator[FullDisk]:
    yield own.disk
    own.disk.free()


@pytest.mark.faults(row=4, xf=True)
@BOTH
def test_standby_without_the_lock_is_promoted(
    store: str, own: Driven, primary: str, made: Made
) -> None:
    """XF: the lock is granted again at once. The token grows, and the old holder finds out."""
    before, asked = made(primary), Claim(name="failover", owner="first", ttl=60)
    assert acquire_and_release(store_of(before), "failover", 5)
    with Standby(own) as standby, alias_for(standby.url, "standby"):
        standby.wait_for_replay()
        standby.cut()
        first = before.acquire(asked, 5)
        own.kill()
        standby.promote()
        after = made("standby")
        with within(1 + SLACK), store_of(after).lock("failover", timeout=WAIT_TIMEOUT) as second:
            assert first is not None
            assert time.monotonic() < first.deadline, "the grants do not overlap"
            assert second.token > first.token
            with pytest.raises(LockError):
                before.release(asked, first.token)
            second.check()
        after.close()


@pytest.mark.faults(row=8)
@pytest.mark.parametrize("store", [SESSION_LOCK])
@pytest.mark.parametrize("step", [-60, 60])
def test_session_lock_ignores_the_clock(
    store: str, own: Driven, clock: Clock, running: str, made: Made, step: int
) -> None:
    """Neither the grant nor a wait depends on it."""
    backend, root = made(running), Superuser(own)
    clock.shift(-step)
    with ThreadPoolExecutor(1) as pool, store_of(backend).lock("stepped", timeout=5) as lease:
        waiter = pool.submit(acquire_and_release, store_of(backend), "stepped")
        until(lambda: root.waits() == 1, "the waiter")
        clock.shift(step)
        assert not waiter.done()
        assert not store_of(backend).lock("stepped", reentrant=False).acquire(timeout=0.3)
        lease.check()
        root.close()
    assert waiter.result(WAIT_TIMEOUT)


@pytest.mark.faults(row=17)
@pytest.mark.parametrize("store", [ROW_LOCK])
def test_full_disk_refuses_new_rows_and_frees_held_ones(
    store: str, disk: FullDisk, running: str, made: Made
) -> None:
    """The lock of a new name needs space, in bounded time; a held one can still be released."""
    backend = made(running)
    held = store_of(backend).lock("held", renew=False)
    assert held.acquire(timeout=5)
    disk.fill()
    tried: list[str] = []

    def acquire_another() -> None:
        tried.append(f"new-{len(tried)}")
        assert acquire_and_release(store_of(backend), tried[-1], 0.5)

    with pytest.raises(LockUnavailable, match="No space left"):
        repeat(acquire_another, 1000)  # until the pages that the table has are full
    with within(10), pytest.raises(LockUnavailable, match="No space left"):
        store_of(backend).lock(tried[-1]).acquire(timeout=0.5)
    names = {one.name for one in backend.inspect()}
    assert "held" in names
    assert tried[-1] not in names
    held.release()
    disk.free()
    assert acquire_and_release(store_of(backend), tried[-1], 5)


def repeat(call: Callable[[], None], times: int) -> None:
    for _ in range(times):
        call()


@pytest.mark.faults(row=17)
@pytest.mark.parametrize("store", [SESSION_LOCK])
def test_session_lock_needs_no_disk(
    store: str, own: Driven, disk: FullDisk, running: str, made: Made
) -> None:
    backend, root = made(running), Superuser(own)
    root("CREATE TABLE control (value text)")
    disk.fill()
    with pytest.raises(Exception, match="No space left"):
        root("INSERT INTO control SELECT repeat('x', 1000) FROM generate_series(1, 100)")
    with store_of(backend).lock("disk", timeout=5) as first:
        assert not store_of(backend).lock("disk", reentrant=False).acquire(blocking=False)
    with store_of(backend).lock("disk", timeout=5) as second:
        assert second.token > first.token
    disk.free()
    root.close()
