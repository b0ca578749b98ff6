"""The textbook Redis locks and their flaws."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
import redis as client

from devservers import Redis
from devservers.faults.waiting import WAIT_TIMEOUT, until
from loadtest.recipes.redis_textbook import SetExpireBackend, SetnxBackend, SetnxExpireBackend
from locking import LockLost
from locking.backends.redis.backend import RedisBackend
from locking.caller import new_owner
from locking.claims import Claim
from locking.failpoints import armed
from locking.lease import LockStore
from tests.locking.calls import store_of

ALL = (SetnxBackend, SetnxExpireBackend, SetExpireBackend)


class Crash(BaseException):
    """Raised where the holder's process ends."""


@pytest.fixture
def server(redis_server: Redis) -> Iterator[Redis]:
    yield redis_server
    with client.Redis.from_url(redis_server.url) as raw:
        for key in raw.scan_iter("textbook:*"):
            raw.delete(key)


def claim(ttl: float = 0.3) -> Claim:
    return Claim(name="n", owner=new_owner(), ttl=ttl)


def crash_between(backend: LockStore) -> None:
    """Acquire the lock and crash, between the two commands if there are two."""

    def crash() -> None:
        raise Crash

    with armed("redis_setnx_expire.between", crash):
        try:
            assert backend.acquire(claim(), 0) is not None
        except Crash:
            return


def is_free_after_the_ttl(backend: LockStore) -> bool:
    return backend.acquire(claim(), 1.0) is not None


@pytest.mark.parametrize("recipe", ALL)
def test_recipe_excludes_and_polls(recipe: type[LockStore], server: Redis) -> None:
    backend, holder = recipe("recipe", location=server.url), claim(ttl=30)
    assert backend.acquire(holder, 0) is not None
    assert backend.acquire(claim(), 0) is None
    assert [(held.name, held.owner) for held in backend.inspect()] == [("n", holder.owner)]
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(backend.acquire, claim(), WAIT_TIMEOUT)
        backend.release(holder, 0)
        assert waiter.result(WAIT_TIMEOUT) is not None
    assert backend.break_lock("n")
    assert not backend.inspect()
    backend.close()


@pytest.mark.parametrize(
    ("recipe", "recovers"),
    [
        (SetnxBackend, False),
        (SetnxExpireBackend, False),
        (SetExpireBackend, True),
        (RedisBackend, True),
    ],
)
def test_crash_during_acquire(recipe: type[LockStore], recovers: bool, server: Redis) -> None:
    """L5 and L6 block forever; the others recover at the end of the ttl."""
    backend = recipe("recipe", location=server.url)
    crash_between(backend)
    assert is_free_after_the_ttl(backend) is recovers
    backend.break_lock("n")
    backend.close()


def test_setnx_expire_recovers_from_a_later_crash(server: Redis) -> None:
    backend = SetnxExpireBackend("recipe", location=server.url)
    assert backend.acquire(claim(), 0) is not None
    assert is_free_after_the_ttl(backend)
    backend.close()


@pytest.mark.parametrize(("recipe", "keeps"), [(SetExpireBackend, False), (RedisBackend, True)])
def test_late_release(recipe: type[LockStore], keeps: bool, server: Redis) -> None:
    """L7: the late holder deletes its successor's lock, and a third claim acquires it."""
    backend: Any = recipe("recipe", location=server.url)
    late, successor = claim(), claim(ttl=30)
    assert backend.acquire(late, 0) is not None
    assert backend.acquire(successor, WAIT_TIMEOUT) is not None
    with pytest.raises(LockLost) if keeps else nullcontext():
        backend.release(late, 0)
    assert (backend.acquire(claim(), 0) is None) is keeps
    backend.break_lock("n")
    backend.close()


def test_waiting_costs_commands(server: Redis) -> None:
    """Polling sends more than ten commands, the real lock two."""
    backend = SetExpireBackend("recipe", location=server.url)
    assert backend.acquire(claim(ttl=30), 0) is not None
    with client.Redis.from_url(server.url) as raw:
        before = raw.info("commandstats")["cmdstat_set"]["calls"]
        started = time.monotonic()
        assert backend.acquire(claim(), 1.0) is None
        assert time.monotonic() - started >= 1.0
        assert raw.info("commandstats")["cmdstat_set"]["calls"] - before > 10
    backend.close()


@pytest.mark.faults(row=23, backend="recipe SETNX", fired="8 pollers")
def test_row_23_pollers_overtake_each_other(server: Redis) -> None:
    """The control for the queues."""
    backend = SetnxBackend("polling", location=server.url)
    asked: list[int] = []
    served: list[int] = []

    def work(number: int) -> None:
        asked.append(number)
        with store_of(backend).lock("n", timeout=WAIT_TIMEOUT):
            served.append(number)

    with ThreadPoolExecutor(8) as pool:
        with store_of(backend).lock("n", timeout=5):
            done = [pool.submit(work, number) for number in range(8)]
            until(lambda: len(asked) == 8, "all asking")
        for one in done:
            one.result(WAIT_TIMEOUT)
    backend.close()
    assert sorted(served) == sorted(asked)
    assert served != asked
