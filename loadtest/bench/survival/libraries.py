"""The locks that are put to the test, each called as its documentation says."""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from django.conf import settings
from redis import Redis

from loadtest.bench.locks import peers
from loadtest.bench.locks.systems import OURS, SYSTEMS, Family, Handle, Opener

LEASE = 2.0
"""Seconds of a lease, and of a ZooKeeper session."""
CONTROL = "naive"


class Library(NamedTuple):
    """A lock: its store, the opener of its handle, the call in words, and its distribution."""

    family: Family
    open: Opener
    call: str
    package: str = ""


def _naive(name: str, ttl: float) -> Handle:
    """Open the textbook recipe, which deletes the key without comparing its owner."""
    client = Redis.from_url(settings.REDIS_URL)

    def acquire(wait: float) -> bool:
        until = time.monotonic() + wait
        while not (granted := client.set(name, 1, nx=True, ex=math.ceil(ttl))):
            if time.monotonic() > until:
                break
            time.sleep(0.05)
        return bool(granted)

    return Handle(acquire, lambda: client.delete(name))


_BENCHED: dict[str, Opener] = {one.name: one.open for one in SYSTEMS}
_PEERS: tuple[tuple[str, Family, Callable[..., Handle], str], ...] = (
    ("redis", "redis", _BENCHED["redis-py Lock"], "client.lock(name, timeout=2)"),
    (
        "python-redis-lock",
        "redis",
        partial(peers.python_redis_lock, auto_renewal=True),
        "Lock(client, name, expire=2, auto_renewal=True)",
    ),
    ("django-redis", "redis", _BENCHED["django-redis"], "cache.lock(name, timeout=2)"),
    ("sherlock", "redis", _BENCHED["sherlock"], "RedisLock(name, client=client, expire=2)"),
    (
        "portalocker",
        "redis",
        partial(peers.portalocker, fencing=True, interrupt_on_lost=False),
        "RedisLock(name, connection=client, fencing=True, interrupt_on_lost=False)",
    ),
    (
        "tooz",
        "redis",
        partial(peers.tooz_redis, start_heart=True),
        "coordinator of redis://...?lock_timeout=2, start(start_heart=True), get_lock(name)",
    ),
    (
        "pottery",
        "redlock",
        _BENCHED["pottery"],
        "Redlock(key=name, masters=five, auto_release_time=2)",
    ),
    (
        "kazoo",
        "zookeeper",
        partial(peers.kazoo, session=LEASE),
        "KazooClient(hosts, timeout=2) with a listener, client.Lock(path)",
    ),
    (
        "sqlalchemy-dlock",
        "mysql",
        _BENCHED["sqlalchemy-dlock"],
        "create_sadlock(connection, name) on MariaDB",
    ),
    ("django-pglock", "postgresql", _BENCHED["django-pglock"], "pglock.advisory(name)"),
)
LIBRARIES = {CONTROL: Library("redis", _naive, "SET NX EX, then DEL")}
for _package, _family, _opener, _call in _PEERS:
    _name = "redis-py" if _package == "redis" else _package
    LIBRARIES[_name] = Library(_family, _opener, _call, _package)
for _name in ("redis", "redlock", "zookeeper", "database", "postgresql_session"):
    _call = f'locks["{_name}"].lock(name, ttl=2)'
    LIBRARIES[f"locking-{_name}"] = Library(OURS[_name][0], _BENCHED[_name], _call)
