"""pg_advisory_lock on a real PostgreSQL: ended sessions, queues, growing tokens, a pooler."""

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockMisuse
from locking.backends.database.session import UserLockSession
from locking.backends.postgresql_session import PostgreSQLSessionBackend
from locking.claims import Claim
from locking.handler import create
from locking.lease import Lock
from tests.locking.backends.database.postgresql_tools import (
    Superuser,
    alias,
    pooled,
    root,
    server,
)
from tests.locking.calls import store_of

__all__ = ["alias", "pooled", "root", "server"]
SESSION = "locking.backends.postgresql_session.PostgreSQLSessionBackend"


def session(alias: str) -> PostgreSQLSessionBackend:
    return create("postgresql_session", {"BACKEND": SESSION, "LOCATION": alias}).backend


@pytest.fixture
def backend(alias: str) -> Iterator[PostgreSQLSessionBackend]:
    made = session(alias)
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["plain", "reader", "semaphore"])
def test_lock_granted_at_the_end_of_a_wait_is_not_kept(
    backend: PostgreSQLSessionBackend, alias: str, root: Superuser, kind: str
) -> None:
    """A statement that reaches its lock_timeout keeps a lock that it got at that moment."""
    name = f"granted late {kind}"

    def lock(of: PostgreSQLSessionBackend, *, first: bool = False) -> Lock:
        if kind == "reader":
            both = store_of(of).read_write(name)
            return both.write() if first else both.read()
        return store_of(of).semaphore(name, 1) if kind == "semaphore" else store_of(of).lock(name)

    other = session(alias)
    mine = lock(other, first=True)
    mine.acquire(timeout=5)
    with ThreadPoolExecutor(2) as pool:
        waiters = [pool.submit(lock(backend).acquire, timeout=1)]
        if kind == "semaphore":  # its first waiter waits for a notification, the next in a queue
            until(lambda: root.sessions() >= 2 and _queue_is_taken(root), "the first waiter")
            waiters.append(pool.submit(lock(backend).acquire, timeout=1))
        until(lambda: root.waits() == 1, "the wait on the server")
        ((pid,),) = root("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        os.kill(pid, signal.SIGSTOP)
        try:
            if kind != "semaphore":
                mine.release()
            until(lambda: root.waits() == 0, "the grant")
            until(lambda: _is_pending(pid, signal.SIGALRM), "the end of the wait")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert [waiter.result(WAIT_TIMEOUT) for waiter in waiters] == [False] * len(waiters)
    if kind == "semaphore":
        mine.release()
    held = "SELECT * FROM pg_locks WHERE locktype = 'advisory'"
    assert root(held) == []
    other.close()


def _queue_is_taken(root: Superuser) -> bool:
    sql = "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
    return bool(root(sql)[0][0] == 2)


def _is_pending(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    pending = re.search(r"ShdPnd:\s*(\w+)", status)
    assert pending is not None
    return bool(int(pending[1], 16) >> number - 1 & 1)


def test_wait_does_not_end_early(backend: PostgreSQLSessionBackend) -> None:
    """The server counts milliseconds; for what is left of one, the waiter would wait again."""
    claim, seconds = Claim(name="early", owner="me", ttl=6), 0.00199
    with closing(backend.pool.open()) as holder, closing(backend.pool.open()) as waiter:
        assert isinstance(holder, UserLockSession)
        assert isinstance(waiter, UserLockSession)
        assert holder.get_lock(claim, "early", 5)
        for _ in range(50):
            began = time.monotonic()
            assert waiter.get_lock(claim, "early", seconds) is None
            assert time.monotonic() - began >= seconds


def test_transaction_pooler_is_refused(pooled: str) -> None:
    backend = session(pooled)
    with pytest.raises(LockMisuse, match="PgBouncer"):
        store_of(backend).lock("pooled").acquire()
    assert not backend.pinned
    backend.close()
