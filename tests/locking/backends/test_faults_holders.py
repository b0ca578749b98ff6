"""FAULTS rows 1 and 2 on every backend: a holder that is stopped.

XF: a lease or a session can have two holders who believe in it. The test counts only if it saw
that, and shows the token that tells them apart; the stock's side of it is in
tests/shop/purchase/test_fence_faults.py, killed holders are in tests/loadtest/torture/test_rows.py.
"""

import ctypes
import time
from contextlib import nullcontext

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost
from locking.backends.database.session_locks import SessionLocks
from locking.testing.calls import acquire_and_release
from tests.locking.backends.fault_stores import (
    LEASED,
    SESSIONS,
    TTL,
    Store,
    alias,
    idle,
    name,
    server,
    store,
)
from tests.locking.calls import acquired

__all__ = ["alias", "idle", "name", "server", "store"]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.faults(row=1, xf=True)
@pytest.mark.parametrize("store", LEASED, indirect=True)
def test_row_1_stopped_for_two_leases(store: Store, name: str) -> None:
    """XF: the second is granted while the first, once it runs again, would go on writing."""
    second = store.backend.lock(name, ttl=30)
    with store.another() as first:
        held = first.acquire(name, timeout=5)
        first.pause()
        stopped = time.monotonic()
        assert second.acquire(timeout=WAIT_TIMEOUT), "the watchdog renewed although it was stopped"
        lease = second.lease
        until(lambda: time.monotonic() - stopped > 2 * TTL, "twice the lease passing")
        first.resume()
        assert first.lease(name) == {"ok": True, "lost": True, "token": held["token"]}
        assert first.release(name)["error"] == "LockLost"
        lease.check()
        assert not first.acquire(name, timeout=0)["ok"], (
            "the late release freed the successor's lock"
        )
        second.release()
    if store.backend.capabilities.fencing:
        assert lease.token > held["token"]


@pytest.mark.faults(row=1)
@pytest.mark.parametrize("store", SESSIONS, indirect=True)
def test_row_1_session_with_live_connection_survives_a_stop(store: Store, name: str) -> None:
    second = store.backend.lock(name)
    with store.another() as first:
        assert first.acquire(name, timeout=5)["ok"]
        first.pause()
        assert not second.acquire(timeout=2 * TTL)
        first.resume()
        assert not first.lease(name)["lost"]
        assert first.release(name)["ok"]
    assert acquire_and_release(store.backend, name)


@pytest.mark.faults(row=2, xf=True, fired="GIL held for 2.5 leases; control: not")
@pytest.mark.parametrize(
    ("store", "is_held"),
    [
        ("redis", True),
        ("redis", False),
        ("redis-sentinel", True),
        ("redis-cluster", True),
        ("database on PostgreSQL", True),
        pytest.param("database", True, marks=pytest.mark.stores),
        ("redlock", True),
        ("zookeeper", True),
        ("postgresql_session", True),
    ],
    indirect=["store"],
)
def test_row_2_gil_held_longer_than_the_lease(store: Store, name: str, is_held: bool) -> None:
    """XF: the watchdog starves with its process, which finds out afterwards.

    Controls: the GIL is free, or the lock needs no watchdog but its connection.
    """
    is_lost = is_held and not isinstance(store.backend.backend, SessionLocks)
    usleep = (ctypes.PyDLL if is_held else ctypes.CDLL)(None).usleep
    lock = store.backend.lock(name)
    with store.another() as other:
        lease = acquired(lock, timeout=5)
        other.send("acquire", name=name, timeout=WAIT_TIMEOUT, ttl=30)
        usleep(int(2.5 * TTL * 1e6))
        assert lease.lost is is_lost
        assert other.is_silent(5 if is_lost else 0) is not is_lost, (
            "the second grant does not overlap"
        )
        with pytest.raises(LockLost) if is_lost else nullcontext():
            lock.release()
        second = other.receive()
        assert second["ok"]
        assert not other.lease(name)["lost"]
        assert other.release(name)["ok"]
    if store.backend.capabilities.fencing:
        assert second["token"] > lease.token
