"""Locks of other libraries, used as their documentation says. Dependency group `peers`."""

import math
import os
import threading
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from django.conf import settings
from django.db import connection
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import LockTimeout
from redis import Redis

from loadtest.bench.locks.systems import Handle, system

ZOOKEEPER_SESSION = 6.0


def _import(name: str) -> Any:
    """Import an optional library, whose types are unknown."""
    return import_module(name)


def _or_false(
    acquire: Callable[[float], object], timed_out: type[Exception] = LockTimeout
) -> Callable[[float], object]:
    """Return False where the library raises `timed_out`, by default kazoo's LockTimeout."""

    def attempt(wait: float) -> object:
        try:
            return acquire(wait)
        except timed_out:
            return False

    return attempt


def _redis_lock(sleep: float, name: str, ttl: float) -> Handle:
    lock = Redis.from_url(settings.REDIS_URL).lock(name, timeout=ttl, sleep=sleep)
    return Handle(
        lambda wait: lock.acquire(blocking_timeout=wait), lock.release, is_owned=lock.owned
    )


system("redis-py Lock", "redis", "peer")(partial(_redis_lock, 0.1))
system("redis-py Lock, 1 ms sleep", "redis", "peer")(partial(_redis_lock, 0.001))


@system("python-redis-lock", "redis", "peer")
def _python_redis_lock(name: str, ttl: float, **options: Any) -> Handle:
    client = Redis.from_url(settings.REDIS_URL)
    expire = math.ceil(ttl)
    lock = _import("redis_lock").Lock(client, name, expire=expire, **options)
    # It refuses a timeout beyond the ttl, and without one it waits forever.
    return Handle(lambda wait: lock.acquire(timeout=wait if wait <= expire else None), lock.release)


@system("portalocker RedisLock", "redis", "peer")
def _portalocker(name: str, ttl: float, **options: Any) -> Handle:  # it has no ttl
    library = _import("portalocker")
    lock = library.RedisLock(name, connection=Redis.from_url(settings.REDIS_URL), **options)
    acquire = _or_false(lambda wait: lock.acquire(timeout=wait), library.LockException)
    return Handle(acquire, lock.release, lambda: lock.fence_token, lambda: lock.lost)


@system("tooz on Redis", "redis", "peer")
def _tooz(name: str, ttl: float, *, start_heart: bool = False) -> Handle:
    url = f"{settings.REDIS_URL}?lock_timeout={math.ceil(ttl)}"
    member = f"{os.getpid()}-{threading.get_ident()}".encode()
    coordinator = _import("tooz.coordination").get_coordinator(url, member)
    coordinator.start(start_heart=start_heart)
    lock = coordinator.get_lock(name.encode())
    return Handle(lambda wait: lock.acquire(blocking=wait), lock.release)


@system("django-redis", "redis", "peer")
def _django_redis(name: str, ttl: float) -> Handle:
    lock = _import("django_redis.cache").RedisCache(settings.REDIS_URL, {}).lock(name, timeout=ttl)
    return Handle(
        lambda wait: lock.acquire(blocking_timeout=wait), lock.release, is_owned=lock.owned
    )


@system("sherlock", "redis", "peer")
def _sherlock(name: str, ttl: float) -> Handle:
    library = _import("sherlock")
    client = Redis.from_url(settings.REDIS_URL)
    lock = library.RedisLock(name, client=client, expire=math.ceil(ttl))

    def acquire(wait: float) -> object:
        lock.timeout = wait
        return lock.acquire()

    return Handle(_or_false(acquire, library.LockTimeoutException), lock.release)


@system("pottery", "redlock", "peer")
def _pottery(name: str, ttl: float) -> Handle:
    masters = {Redis.from_url(url) for url in settings.REDLOCK_URLS}
    lock = _import("pottery").Redlock(key=name, masters=masters, auto_release_time=ttl)
    return Handle(lambda wait: lock.acquire(timeout=wait), lock.release, is_owned=lock.locked)


@system("kazoo Lock", "zookeeper", "peer", session=ZOOKEEPER_SESSION)
def _kazoo(name: str, ttl: float, session: float = ZOOKEEPER_SESSION) -> Handle:
    client = KazooClient(settings.ZOOKEEPER_HOSTS, timeout=session)
    client.start()
    seen: list[str] = []
    client.add_listener(seen.append)
    lock = client.Lock(f"/kazoo/{name}")
    acquire = _or_false(lambda wait: lock.acquire(timeout=wait))
    warnings = {KazooState.SUSPENDED, KazooState.LOST}
    return Handle(acquire, lock.release, is_lost=lambda: not warnings.isdisjoint(seen))


@system("django-pglock", "postgresql", "peer", session=0.0)
def _pglock(name: str, ttl: float) -> Handle:
    advisory = _import("pglock").advisory
    return Handle(lambda wait: advisory(name, timeout=wait).acquire(), advisory(name).release)


def _dlock_on(driver: str, name: str, ttl: float) -> Handle:
    given = connection.settings_dict
    url = f"{driver}://{given['USER']}@{given['HOST']}:{given['PORT']}/{given['NAME']}"
    engine = _import("sqlalchemy").create_engine(url)
    lock = _import("sqlalchemy_dlock").create_sadlock(engine.connect(), name)
    return Handle(lambda wait: lock.acquire(timeout=wait), lock.release)


_dlock = partial(system, role="peer", session=0.0)
_dlock("sqlalchemy-dlock", "mysql")(partial(_dlock_on, "mysql+mysqldb"))
_dlock("sqlalchemy-dlock, PostgreSQL", "postgresql")(partial(_dlock_on, "postgresql+psycopg"))
