"""A Redis server for faults, backends as in other processes, and waiting threads."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from devservers import Redis
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking.backends.redis.backend import RedisBackend
from locking.backends.redis.connection import Connection
from locking.caller import new_owner
from locking.claims import Claim
from locking.lease import Lease
from tests.devservers.faults.interception import InterceptingProxy
from tests.locking.calls import store_of

BOUND = 15.0
"""Upper bound in seconds for an error of a Redis that fails, on a busy machine."""
Connect = Callable[..., RedisBackend]


@pytest.fixture
def server() -> Iterator[Redis]:
    with Redis() as server:
        yield server


@pytest.fixture
def proxy(server: Redis) -> Iterator[InterceptingProxy]:
    with InterceptingProxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Create backends that do not know each other's tokens, as in different processes."""
    with ExitStack() as stack:

        def make(url: str, **options: Any) -> RedisBackend:
            backend = RedisBackend("redis", location=url, options=options)
            stack.callback(backend.close)
            return backend

        yield make


def claim(ttl: float = 30.0) -> Claim:
    """Return a claim of a new owner on the same name."""
    return Claim(name="n", owner=new_owner(), ttl=ttl)


def take(backend: RedisBackend, ttl: float = 30.0) -> Lease:
    """Acquire a lease that the watchdog does not renew."""
    return store_of(backend).lock("n", ttl=ttl, renew=False, timeout=WAIT_TIMEOUT).__enter__()


def waiting(backend: RedisBackend) -> int:
    """Return the number of waiters."""
    pool, queue = backend.pool.of("n"), backend.keys("n")[1]
    length: int = pool.call(Connection.command, "LLEN", queue)
    return max(0, length - 1)  # the first entry is the holder's


@contextmanager
def waiters(backend: RedisBackend, *claims: Claim) -> Iterator[list[Future[Any]]]:
    """Queue the claims in this order, each waiting in a thread."""
    with ThreadPoolExecutor(len(claims)) as pool:
        started, before = [], waiting(backend)
        for number, one in enumerate(claims, before + 1):
            started.append(pool.submit(backend.acquire, one, WAIT_TIMEOUT))
            until(lambda number=number: waiting(backend) == number, "a waiter queueing")
        yield started
