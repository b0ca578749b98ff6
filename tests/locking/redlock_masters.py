"""What the tests of RedLock share: five masters of their own, to look into and to hurt."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from devservers import Redis, start_all, stop_all
from loadtest.faults.waiting import until
from locking.backends.base import Claim, Grant
from locking.backends.redlock.backend import RedLockBackend
from locking.types import new_owner

NAME = "redlock-test"
KEY = f"redlock:{NAME}"


class Masters:
    """Five masters and the clients that a test makes for them; all of it ends with the test."""

    def __init__(self) -> None:
        self.servers = [Redis() for _ in range(5)]
        self.urls = [server.url for server in self.servers]
        self._backends: list[RedLockBackend] = []

    def client(self, *, urls: list[str] | None = None, **options: Any) -> RedLockBackend:
        """A backend as another process would have it."""
        backend = RedLockBackend("test", location=urls or self.urls, options=options)
        self._backends.append(backend)
        return backend

    def value(self, number: int, key: str = KEY) -> str | None:
        """What one master keeps under a key, asked past the backend."""
        with redis.Redis.from_url(self.servers[number].url, decode_responses=True) as direct:
            kept: str | None = direct.get(key)
            return kept

    def values(self, key: str = KEY) -> list[str | None]:
        """What each master keeps under a key."""
        return [self.value(number, key) for number in range(5)]

    def plant(self, number: int, value: str = "somebody else", key: str = KEY) -> None:
        """Let one master believe that somebody has the lock."""
        with redis.Redis.from_url(self.servers[number].url) as direct:
            direct.set(key, value)

    def uproot(self, number: int, key: str = KEY) -> None:
        """Let it forget."""
        with redis.Redis.from_url(self.servers[number].url) as direct:
            direct.delete(key)

    def restart_empty(self, number: int) -> None:
        """A crash without persistence."""
        self.servers[number].kill()
        self.servers[number].start()

    def stop(self) -> None:
        for server in self.servers:
            with suppress(ProcessLookupError):
                server.resume()
        for backend in self._backends:
            backend.close()
        stop_all(self.servers)


@pytest.fixture
def masters() -> Iterator[Masters]:
    five = Masters()
    start_all(five.servers)
    yield five
    five.stop()


def claim(ttl: float = 60.0) -> Claim:
    """A new claim on NAME; its ttl outlasts any test, so that only an undoing frees a key."""
    return Claim(name=NAME, owner=new_owner(), ttl=ttl)


def take(backend: RedLockBackend, ttl: float = 60.0, timeout: float = 5.0) -> tuple[Claim, Grant]:
    """A grant; fails the test when there is none."""
    asked = claim(ttl)
    grant = backend.acquire(asked, timeout)
    assert grant is not None
    return asked, grant


def connected(backend: RedLockBackend) -> RedLockBackend:
    """The same, once it has a connection to every master that can be had at once by a claim."""

    def all_five() -> bool:
        backend.probe()
        return len(backend._idle[-1].voters()) == 5

    until(all_five, "five connections")
    return backend


def elapsed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.monotonic()
    call()
    return time.monotonic() - started
