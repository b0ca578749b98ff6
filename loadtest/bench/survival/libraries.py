"""The locks that are put to the test, each called as its documentation says."""

import math
import time
from functools import partial
from typing import Any, NamedTuple

from django.conf import settings
from redis import Redis

from loadtest.bench.locks import peers  # noqa: F401 - registers their systems
from loadtest.bench.locks.systems import SYSTEMS, Family, Handle, Opener

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


# By name: the system of `lab bench locks`, the options that its documentation recommends, the call.
_SYSTEMS: dict[str, tuple[str, dict[str, Any], str]] = {
    "redis-py": ("redis-py Lock", {}, "client.lock(name, timeout=2)"),
    "python-redis-lock": (
        "python-redis-lock",
        {"auto_renewal": True},
        "Lock(client, name, expire=2, auto_renewal=True)",
    ),
    "django-redis": ("django-redis", {}, "cache.lock(name, timeout=2)"),
    "sherlock": ("sherlock", {}, "RedisLock(name, client=client, expire=2)"),
    "portalocker": (
        "portalocker RedisLock",
        {"fencing": True, "interrupt_on_lost": False},
        "RedisLock(name, connection=client, fencing=True, interrupt_on_lost=False)",
    ),
    "tooz": (
        "tooz on Redis",
        {"start_heart": True},
        "coordinator of redis://...?lock_timeout=2, start(start_heart=True), get_lock(name)",
    ),
    "pottery": ("pottery", {}, "Redlock(key=name, masters=five, auto_release_time=2)"),
    "kazoo": (
        "kazoo Lock",
        {"session": LEASE},
        "KazooClient(hosts, timeout=2) with a listener, client.Lock(path)",
    ),
    "sqlalchemy-dlock": ("sqlalchemy-dlock", {}, "create_sadlock(connection, name) on MariaDB"),
    "django-pglock": ("django-pglock", {}, "pglock.advisory(name)"),
}
for _name in ("redis", "redlock", "zookeeper", "database", "postgresql_session"):
    _SYSTEMS[f"locking-{_name}"] = (_name, {}, f'locks["{_name}"].lock(name, ttl=2)')
LIBRARIES = {CONTROL: Library("redis", _naive, "SET NX EX, then DEL")}
for _name, (_system, _options, _call) in _SYSTEMS.items():
    _one = next(one for one in SYSTEMS if one.name == _system)
    _package = {"redis-py": "redis"}.get(_name, _name) if _one.role == "peer" else ""
    LIBRARIES[_name] = Library(_one.family, partial(_one.open, **_options), _call, _package)
