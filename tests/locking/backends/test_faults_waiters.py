"""FAULTS row 23 and F7: many waiters for one lock, their order and their cost."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import redis as client

from devservers import Redis
from devservers.faults.waiting import WAIT_TIMEOUT
from locking.backends.redis.backend import RedisBackend
from tests.locking.backends.fault_stores import (
    SESSIONS,
    Store,
    alias,
    idle,
    name,
    server,
    store,
)
from tests.locking.calls import store_of
from tests.locking.lock_worker import CONTEND_TIMEOUT

__all__ = ["alias", "idle", "name", "server", "store"]

pytestmark = pytest.mark.django_db(transaction=True)
PROCESSES = 4
SECONDS = 2.0
"""Duration of one round in which all contend for the lock."""
ROUNDS = 8
"""Chance alone makes unequal shares of few grants: a lottery of m for each has an index of about
m / (m + 1). More rounds take that away, and leave what is unfair."""


def jain(shares: list[int]) -> float:
    """Return 1 for equal shares, 1/n if one has everything (Jain, Chiu and Hawe 1984)."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


@pytest.mark.faults(row=23, fired="contenders at once")
@pytest.mark.parametrize("contenders", [8, 64])
@pytest.mark.parametrize(
    "store",
    [
        "redlock",
        pytest.param("database", marks=pytest.mark.only("sqlite")),
        *SESSIONS,
    ],
    indirect=True,
)
def test_row_23_every_contender_gets_a_share(store: Store, name: str, contenders: int) -> None:
    assert not store.backend.capabilities.fair
    shares = [0] * contenders
    with ExitStack() as stack:
        workers = [stack.enter_context(store.another()) for _ in range(PROCESSES)]
        for worker in workers:
            worker.configure({**store.conf, "TTL": 30.0})
            assert worker.acquire(name, timeout=CONTEND_TIMEOUT)["ok"]
            worker.release(name)
        for _ in range(ROUNDS):
            end = time.monotonic() + SECONDS
            for worker in workers:
                worker.contend(name, threads=contenders // PROCESSES, until=end)
            results = [worker.receive() for worker in workers]
            got = [grants for result in results for grants in result["grants"]]
            assert max(result["longest"] for result in results) < CONTEND_TIMEOUT
            shares = [sum(both) for both in zip(shares, got, strict=True)]
            if jain(shares) >= 0.9 and min(shares) > 0:
                return
    pytest.fail(f"Jain index {jain(shares):.2f} of {shares}")


@pytest.fixture
def redis() -> Iterator[client.Redis]:
    with Redis() as server, client.Redis.from_url(server.url) as direct:
        yield direct


SENT = ("eval", "evalsha", "set", "subscribe", "unsubscribe")
"""Commands of the two locks; a SET inside a script counts too."""


def commands_each(redis: client.Redis, contenders: int, lock: Callable[[], Any]) -> float:
    """Return the commands per contender that Redis received."""
    with lock():  # loads the scripts
        pass
    redis.config_resetstat()
    ready = threading.Barrier(contenders)

    def work(_: int) -> None:
        mine = lock()
        ready.wait(WAIT_TIMEOUT)
        with mine:
            time.sleep(0.005)  # the work that the lock is for

    with ThreadPoolExecutor(contenders) as pool:
        list(pool.map(work, range(contenders)))
    stats = redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{one}", {"calls": 0})["calls"] for one in SENT) / contenders


@pytest.mark.faults(row="F7", backend="redis", fired="waiters counted")
def test_f7_cost_per_waiter_is_constant_in_a_queue(redis: client.Redis) -> None:
    """Commands are counted by the server; redis-py's Lock is the control, which polls."""
    port = redis.connection_pool.connection_kwargs["port"]
    backend = RedisBackend("redis", location=f"redis://127.0.0.1:{port}/0")

    def queued() -> Any:
        return store_of(backend).lock("f7", ttl=30, timeout=WAIT_TIMEOUT)

    def polling() -> Any:
        return redis.lock("polled", timeout=30, sleep=0.01)

    ours = {count: commands_each(redis, count, queued) for count in (8, 64)}
    theirs = {count: commands_each(redis, count, polling) for count in (8, 64)}
    backend.close()
    assert ours[64] <= 1.3 * ours[8], ours
    assert theirs[64] > 2 * theirs[8], theirs
    assert theirs[64] > 3 * ours[64], (ours, theirs)
