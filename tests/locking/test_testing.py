"""Locks in memory, their clock and the fixtures of `locking.testing`."""

import asyncio
import math
import subprocess
import sys
from pathlib import Path

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT
from locking import LockLost, LockMisuse, LockTimeout, lock, locks
from locking.lease import LockStore
from locking.testing.calls import acquire_and_release, in_thread, within
from locking.testing.fixtures import lock_clock  # noqa: F401 - a fixture
from locking.testing.memory import InMemoryBackend, VirtualClock, held_elsewhere, locks_in_memory

CONFTEST = """
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "locking"]
)
django.setup()
pytest_plugins = ["locking.testing.fixtures"]
"""
TESTS = """
import pytest
from locking import locks
from locking.testing.memory import held_elsewhere

pytestmark = pytest.mark.usefixtures("no_keys_left")


def test_lock_is_left(lock_clock):
    locks["default"].lock("invoice:42").acquire()


def test_lock_is_left_without_a_clock():
    assert locks["default"].lock("invoice:43").acquire()


def test_lock_left_by_another_test_does_not_count():
    assert locks["default"].lock("invoice:43").lease is not None


def test_key_is_left_by_what_this_process_no_longer_holds(lock_clock):
    locks["default"].lock("invoice:44").try_acquire().forget()


def test_no_key_is_left(lock_clock):
    with held_elsewhere("invoice:45", "default"), locks["default"].lock("invoice:46"):
        pass
"""


@pytest.fixture
def memory(lock_clock: VirtualClock) -> LockStore:  # noqa: F811
    return locks["redis"]


@pytest.mark.parametrize(
    ("options", "seconds"),
    [({}, 6.0), ({"ttl": 600, "max_hold": 100}, 100.0)],
    ids=["ttl", "max_hold"],
)
def test_advanced_clock_ends_the_lease(
    memory: LockStore, options: dict[str, float], seconds: float
) -> None:
    lost = []
    held = memory.lock("invoice:42", on_lost=lost.append, **options)
    held.acquire()
    lease = held.lease
    memory.backend.clock.advance(0.9 * seconds)
    lease.check()  # within 10 s: max_hold is also a limit of the real time
    memory.backend.clock.advance(0.1 * seconds)
    assert lease.lost
    assert lost == [lease]
    assert in_thread(acquire_and_release, memory, "invoice:42", 0)
    with pytest.raises(LockLost):
        held.release()


def test_extended_lease_ends_later(memory: LockStore) -> None:
    with memory.lock("invoice:42") as lease:
        memory.backend.clock.advance(5)
        lease.extend(6)
        memory.backend.clock.advance(5)
        lease.check()
        assert [round(seen.expires_in, 1) for seen in memory.inspect()] == [1.0]


def test_waiter_gets_the_lock_of_an_ended_lease(memory: LockStore) -> None:
    lost = []
    with pytest.raises(LockLost), memory.lock("invoice:42"):
        lost.append(asyncio.run(_advance_while_waiting(memory)))
    assert lost == [False]


async def _advance_while_waiting(memory: LockStore) -> bool:
    async def wait() -> bool:
        async with memory.lock("invoice:42", timeout=WAIT_TIMEOUT) as lease:
            memory.backend.clock.advance(5)
            return lease.lost

    waiter = asyncio.create_task(wait())
    while not memory.inspect()[0].waiters:
        await asyncio.sleep(0.001)
    memory.backend.clock.advance(6)
    return await waiter


def test_lock_held_elsewhere_refuses_without_a_wait() -> None:
    with locks_in_memory(), held_elsewhere("invoice:42", "redis"), within(WAIT_TIMEOUT):
        busy = locks["redis"].lock("invoice:42", timeout=600)
        with pytest.raises(LockTimeout), busy:
            pass
        assert not asyncio.run(busy.aacquire(timeout=600))
        with pytest.raises(LockMisuse, match="would never end"):
            busy.acquire(timeout=math.inf)
        with locks["redis"].lock("invoice:43", timeout=600):
            pass
    with locks_in_memory() as clock, held_elsewhere("invoice:42", "redis"):
        clock.advance(60)
        assert acquire_and_release(locks["redis"], "invoice:42", 0)


@pytest.mark.django_db
def test_fixture_replaces_every_backend(lock_clock: VirtualClock) -> None:  # noqa: F811
    with lock("invoice:42") as lease:
        assert isinstance(lease.backend, InMemoryBackend)
        assert {type(locks[alias].backend) for alias in locks} == {InMemoryBackend}
        with held_elsewhere("invoice:43"), pytest.raises(LockTimeout), lock("invoice:43"):
            pass
        lock_clock.advance(1)


def test_fixtures_serve_a_project_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_project.py").write_text(TESTS)
    code = "import sys, pytest; sys.exit(pytest.main(['-q', '-rEp', '-p', 'no:django']))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    report = done.stdout
    assert "5 passed, 3 errors" in report, report
    for name in ("invoice:42", "invoice:43", "invoice:44"):
        assert f"left in its store at the end of the test: {name!r} in 'default'" in report
