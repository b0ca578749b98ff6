"""Both locks on a PostgreSQL that is replaced, or whose clock or disk fails: FAULTS 4, 8 and 17."""

from collections.abc import Callable, Iterator

import pytest
from pytest_django import DjangoDbBlocker

from devservers import PostgreSql
from devservers.faults.clock import Clock
from devservers.faults.full_disk import FullDisk
from locking import LockUnavailable
from locking.testing.calls import acquire_and_release, within
from tests.locking.backends.database.postgresql_tools import (
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
def disk(own: Driven) -> Iterator[FullDisk]:
    yield own.disk
    own.disk.free()


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
