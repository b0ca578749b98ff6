"""The locks that are put to the test, each called as its documentation says."""

import math
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any

from django.conf import settings
from redis import Redis

from loadtest.bench.locks import peers
from loadtest.bench.locks.systems import OURS, SYSTEMS, Family, Handle, Opener

LEASE = 2.0
"""Seconds of a lease, and of a ZooKeeper session."""
POLL = 0.05
CONTROL = "SET NX EX, then DEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A lock: the opener of its handle, and the call that its documentation gives."""

    family: Family
    open: Opener
    call: str
    package: str = ""
    """The distribution; empty for this library and the control."""
    module: str = ""

    def version(self) -> str:
        """Return the installed version, empty without a package; PackageNotFoundError if none."""
        return metadata.version(self.package) if self.package else ""


def _naive(name: str, ttl: float) -> Handle:
    """Open the textbook recipe, which deletes the key without comparing its owner."""
    client = Redis.from_url(settings.REDIS_URL)
    owner = uuid.uuid4().hex

    def acquire(wait: float) -> bool:
        until = time.monotonic() + wait
        while not client.set(name, owner, nx=True, ex=math.ceil(ttl)):
            if time.monotonic() > until:
                return False
            time.sleep(POLL)
        return True

    return Handle(acquire, lambda: client.delete(name))


_OPENERS = {one.name: one.open for one in SYSTEMS}
_portalocker = partial(peers.portalocker, fencing=True, interrupt_on_lost=False)
_PEERS: dict[str, tuple[Family, str | Callable[..., Handle], str, str]] = {
    "redis-py": ("redis", "redis-py Lock", "redis", "client.lock(name, timeout=2)"),
    "python-redis-lock": (
        "redis",
        partial(peers.python_redis_lock, auto_renewal=True),
        "python-redis-lock",
        "Lock(client, name, expire=2, auto_renewal=True)",
    ),
    "django-redis": ("redis", "django-redis", "django-redis", "cache.lock(name, timeout=2)"),
    "sherlock": ("redis", "sherlock", "sherlock", "RedisLock(name, client=client, expire=2)"),
    "portalocker": (
        "redis",
        _portalocker,
        "portalocker",
        "RedisLock(name, connection=client, fencing=True, interrupt_on_lost=False)",
    ),
    "tooz": (
        "redis",
        partial(peers.tooz_redis, start_heart=True),
        "tooz",
        'get_coordinator("redis://...?lock_timeout=2", id), start(start_heart=True)',
    ),
    "pottery": (
        "redlock",
        "pottery",
        "pottery",
        "Redlock(key=name, masters=masters, auto_release_time=2), five masters",
    ),
    "kazoo": (
        "zookeeper",
        partial(peers.kazoo, session=LEASE),
        "kazoo",
        "KazooClient(hosts, timeout=2), add_listener, client.Lock(path)",
    ),
    "sqlalchemy-dlock": (
        "mysql",
        "sqlalchemy-dlock",
        "sqlalchemy-dlock",
        "create_sadlock(connection, name) on MariaDB",
    ),
    "django-pglock": ("postgresql", "django-pglock", "django-pglock", "pglock.advisory(name)"),
}
_OURS = ("redis", "redlock", "zookeeper", "database", "postgresql_session")


def _libraries() -> dict[str, Library]:
    given: dict[str, Any] = {"family": "redis", "open": _naive, "call": "the control"}
    found = {CONTROL: Library(**given)}
    for name, (family, opened, package, call) in _PEERS.items():
        opener = _OPENERS[opened] if isinstance(opened, str) else opened
        found[name] = Library(family=family, open=opener, call=call, package=package)
    for name in _OURS:
        call = f'locks["{name}"].lock(name, ttl=2)'
        found[f"ours: {name}"] = Library(family=OURS[name][0], open=_OPENERS[name], call=call)
    return found


LIBRARIES = _libraries()
