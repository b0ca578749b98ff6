"""The locks that are put to the test, each called as its documentation says."""

import math
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

from django.conf import settings
from redis import Redis, asyncio
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from loadtest.bench.locks import peers  # noqa: F401 - registers their systems
from loadtest.bench.locks.systems import SYSTEMS, Family, Handle, Opener
from locking import locks

LEASE = 2.0
"""Seconds of a lease, and of a ZooKeeper session."""
CONTROL = "naive"


class Library(NamedTuple):
    """A lock: its store, the opener of its handle, the call in words, and its distribution.

    `open_async` opens its asyncio lock, or says why there is none; `open_inside` opens it for use
    inside a transaction.
    """

    family: Family
    open: Opener
    call: str
    package: str
    open_async: Callable[[str, float], Any] | str
    open_inside: Opener


def _naive(name: str, ttl: float) -> Handle:
    """Open the textbook recipe, which deletes the key without comparing its owner.

    Its client repeats a request without a reply, as redis-py's does by default.
    """
    client = Redis.from_url(settings.REDIS_URL, retry=Retry(ConstantBackoff(LEASE / 4), 1))

    def acquire(wait: float) -> bool:
        until = time.monotonic() + wait
        while not (granted := client.set(name, 1, nx=True, ex=math.ceil(ttl))):
            if time.monotonic() > until:
                break
            time.sleep(0.05)
        return bool(granted)

    return Handle(acquire, lambda: client.delete(name))


def _naive_async(name: str, ttl: float) -> Any:
    client, ends = asyncio.Redis.from_url(settings.REDIS_URL), math.ceil(ttl)
    return SimpleNamespace(
        acquire=partial(client.set, name, 1, nx=True, ex=ends), release=partial(client.delete, name)
    )


def _redis_async(name: str, ttl: float) -> Any:
    return asyncio.Redis.from_url(settings.REDIS_URL).lock(name, timeout=ttl)


def _pottery_async(name: str, ttl: float) -> Any:
    masters = {asyncio.Redis.from_url(url) for url in settings.REDLOCK_URLS}
    return import_module("pottery").AIORedlock(key=name, masters=masters, auto_release_time=ttl)


def _ours_async(alias: str, name: str, ttl: float) -> Any:
    lock = locks[alias].lock(name, ttl=ttl)
    return SimpleNamespace(acquire=lock.aacquire, release=lock.arelease)


def _ours_inside(alias: str, name: str, ttl: float) -> Handle:
    lock = locks[alias].lock(name, ttl=ttl, until="commit")
    return Handle(lambda wait: lock.__enter__(), lambda: lock.__exit__(None, None, None))


def _pglock_inside(name: str, ttl: float) -> Handle:
    advisory = import_module("pglock").advisory
    return Handle(lambda wait: advisory(name, timeout=wait, xact=True).acquire(), lambda: None)


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
_ASYNC: dict[str, Callable[[str, float], Any] | str] = {
    "redis-py": _redis_async,
    "pottery": _pottery_async,
    "sqlalchemy-dlock": "not run: aiomysql is not installed",
}
_INSIDE: dict[str, Opener] = {"django-pglock": _pglock_inside}
for _name in ("redis", "redlock", "zookeeper", "database", "postgresql_session"):
    _SYSTEMS[f"locking-{_name}"] = (_name, {}, f'locks["{_name}"].lock(name, ttl=2)')
    _ASYNC[f"locking-{_name}"] = partial(_ours_async, _name)
    _INSIDE[f"locking-{_name}"] = partial(_ours_inside, _name)
LIBRARIES = {CONTROL: Library("redis", _naive, "SET NX EX, then DEL", "", _naive_async, _naive)}
for _name, (_system, _options, _call) in _SYSTEMS.items():
    _one = next(one for one in SYSTEMS if one.name == _system)
    _package = {"redis-py": "redis"}.get(_name, _name) if _one.role == "peer" else ""
    _opens = partial(_one.open, **_options), _call, _package
    _inside = _INSIDE.get(_name, _opens[0])
    LIBRARIES[_name] = Library(_one.family, *_opens, _ASYNC.get(_name, "-"), _inside)
