"""Semaphores and read-write locks on a Redis that loses its data."""

from contextlib import ExitStack, closing
from typing import Any

import pytest

from devservers import Redis
from locking import LockLost
from locking.handler import create
from tests.locking.calls import acquired, store_of

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
