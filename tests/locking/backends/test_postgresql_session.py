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


def test_lock_granted_at_the_end_of_a_wait_is_not_kept(
    backend: PostgreSQLSessionBackend, alias: str, root: Superuser
) -> None:
    """A statement that reaches its lock_timeout keeps a lock that it got at that moment."""
    other = session(alias)
    mine = store_of(other).lock("granted late")
    mine.acquire(timeout=5)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(store_of(backend).lock("granted late").acquire, timeout=1)
        until(lambda: root.waits() == 1, "the wait on the server")
        ((pid,),) = root("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        os.kill(pid, signal.SIGSTOP)
        try:
            mine.release()
            until(lambda: root.waits() == 0, "the grant")
            until(lambda: _is_pending(pid, signal.SIGALRM), "the end of the wait")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert not waiter.result(WAIT_TIMEOUT)
    assert root("SELECT * FROM pg_locks WHERE locktype = 'advisory'") == []
    other.close()


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
