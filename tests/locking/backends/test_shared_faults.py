"""FAULTS rows 1, 5 and 12 on semaphores and read-write locks: holders that do not know their end.

XF: the old holders and the new ones believe in their grants at once. The tokens tell the writers
apart, and no late call of an old holder touches a new one.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest

from devservers import Redis, ZooKeeper
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost
from locking.handler import create
from tests.devservers.faults.interception import ExpireSession
from tests.locking.backends.shared_calls import lock_of
from tests.locking.backends.zookeeper.zookeeper_tools import backend, name, other
from tests.locking.calls import acquired, store_of

__all__ = ["backend", "name", "other"]

REDIS = "locking.backends.redis.RedisBackend"


@pytest.mark.faults(row=5, backend="redis", xf=True)
def test_row_5_redis_crash_loses_all_slots() -> None:
    """Redis loses the holders: as many again are granted, and a writer's token still grows."""
    with Redis() as server, ExitStack() as stack:

        def connect() -> Any:
            conf = {"BACKEND": REDIS, "LOCATION": server.url, "TTL": 30.0}
            return stack.enter_context(closing(create("redis", conf).backend))

        before, after = connect(), connect()
        first = acquired(store_of(before).read_write("n").write(renew=False), timeout=5)
        slots = [store_of(before).semaphore("n", 2, renew=False, reentrant=False) for _ in range(2)]
        leases = [acquired(slot, timeout=5) for slot in slots]
        server.kill()
        server.start()
        second = acquired(store_of(after).read_write("n").write(), timeout=5)
        more = [store_of(after).semaphore("n", 2, reentrant=False) for _ in range(2)]
        grants = [acquired(slot, timeout=5) for slot in more]
        assert not any(lease.lost for lease in (first, *leases, second, *grants))
        assert second.token > first.token
        assert not store_of(after).semaphore("n", 2, reentrant=False).acquire(blocking=False)
        for lease in (first, leases[1]):
            with pytest.raises(LockLost):
                lease.release()
        second.check()
        assert not store_of(after).semaphore("n", 2, reentrant=False).acquire(blocking=False)


@pytest.mark.faults(row=12, backend="zookeeper", xf=True)
@pytest.mark.parametrize("kind", ["semaphore", "write"])
def test_row_12_expired_session_frees_its_slots(
    kind: str, zookeeper: ZooKeeper, backend: Any, other: Any, name: str
) -> None:
    """A second client with the same session id ends the session."""
    lost = threading.Event()
    lock = lock_of(store_of(backend), kind, name, slots=1, on_lost=lambda lease: lost.set())
    lease = acquired(lock, timeout=5)
    with ThreadPoolExecutor(1) as pool:
        successor = lock_of(store_of(other), kind, name, slots=1)
        wait = pool.submit(successor.acquire, timeout=WAIT_TIMEOUT)
        until(lambda: len(other.queue(lock.name)) == 2, "the other one queueing")
        fault = ExpireSession(zookeeper.hosts, backend.session.client.client_id)
        fault.inject()
        assert fault.injected
        assert wait.result(WAIT_TIMEOUT)
        assert lost.wait(WAIT_TIMEOUT)
        for call in (lease.check, lock.release):
            with pytest.raises(LockLost):
                call()
        taken = pool.submit(lambda: successor.lease).result(WAIT_TIMEOUT)
        assert taken.token > lease.token
        taken.check()
        pool.submit(successor.release).result(WAIT_TIMEOUT)
