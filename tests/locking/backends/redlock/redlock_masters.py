"""Five RedLock masters for a test, and clients for them."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from devservers import Redis
from devservers.faults.waiting import until
from locking.backends.redlock.backend import RedLockBackend
from locking.caller import new_owner
from locking.claims import Claim, Grant
from tests.devservers.redis_groups import Group

NAME = "redlock-test"
KEY = f"redlock:{NAME}"
FIRST_THREE = (0, 1, 2)


class Masters(Group):
    """Five masters and a test's clients for them."""

    def __init__(self) -> None:
        self.nodes = self.servers = [Redis() for _ in range(5)]
        self.urls = [server.url for server in self.servers]
        self.raw = [redis.Redis.from_url(url, decode_responses=True) for url in self.urls]
        """The test's clients."""
        self._backends: list[RedLockBackend] = []

    def client(self, **options: Any) -> RedLockBackend:
        """Return a new backend, as another process would have it.

        Its node timeout is four times the default, because the machine may be busy.
        """
        options = {"NODE_TIMEOUT": 0.2, **options}
        backend = RedLockBackend("test", location=self.urls, options=options)
        self._backends.append(backend)
        return backend

    def value(self, number: int) -> str | None:
        """Return the value of the lock's key on one master."""
        return self.raw[number].get(KEY)

    def values(self) -> list[str | None]:
        """Return the value of the lock's key on each master."""
        return [raw.get(KEY) for raw in self.raw]

    def plant(self, *numbers: int, value: str = "another client") -> None:
        """Set the lock's key on some masters for another client."""
        for number in numbers:
            self.raw[number].set(KEY, value)

    def uproot(self, *numbers: int) -> None:
        """Delete the lock's key on some masters."""
        for number in numbers:
            self.raw[number].delete(KEY)

    def pause(self, count: int) -> None:
        """Stop the first `count` masters."""
        for server in self.servers[:count]:
            server.pause()

    def restart_empty(self, number: int) -> None:
        """Restart a master without its data."""
        self.servers[number].kill()
        self.servers[number].start()

    def __exit__(self, *exc_info: object) -> None:
        for client in (*self._backends, *self.raw):
            client.close()
        super().__exit__(*exc_info)


@pytest.fixture
def masters() -> Iterator[Masters]:
    with Masters() as five:
        yield five


def claim(ttl: float = 60.0) -> Claim:
    """Return a new claim on NAME; its ttl is longer than any test, so keys do not expire."""
    return Claim(name=NAME, owner=new_owner(), ttl=ttl)


def take(backend: RedLockBackend, ttl: float = 60.0, timeout: float = 5.0) -> tuple[Claim, Grant]:
    """Acquire the lock; fail the test if that is not possible."""
    asked = claim(ttl)
    grant = backend.acquire(asked, timeout)
    assert grant is not None
    return asked, grant


def connected(backend: RedLockBackend) -> RedLockBackend:
    """Return the backend when an idle quorum has connections to all five masters."""

    def all_five() -> bool:
        backend.probe()
        quorum = backend.pool.take()
        backend.pool.give(quorum)
        return len(quorum.voters()) == 5

    until(all_five, "five connections")
    return backend
