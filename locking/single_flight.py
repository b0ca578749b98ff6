"""Cached values that are built once for all processes and threads.

    from locking import single_flight

    lists = single_flight.get_or_build("home:en", build, ttl=1, stale=5)

The values are kept in Django's cache. While one thread of one process builds a value, callers that
find an older one return it at once. The others wait for the new value: threads of the same process
for its builder, the builders of other processes for the lock, whose release wakes them. The part of
a key before its first colon is its namespace, which `invalidate` and the counters use.

settings.LOCK_SINGLE_FLIGHT = {
    "CACHE": "default",    # alias in CACHES
    "LOCK": "redis",       # alias in LOCKS; None for the backend that the policy has in force
    "LOCK_TTL": 2.0,       # seconds after which a builder that died is replaced
    "TIMEOUT": 5.0,        # seconds that a caller without any value waits
}
"""

from __future__ import annotations

import logging
import math
import pickle
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote
from weakref import WeakValueDictionary

from django.conf import settings
from django.core.cache import BaseCache, caches

from locking import metrics
from locking.exceptions import LockError, LockMisuse, LockTimeout
from locking.handler import locks
from locking.lease import Lease, Lock
from locking.names import BUILD_PREFIX, ReservedName, check_name, is_number, storable
from locking.policy.lock import PolicyLock
from locking.refresh import SharedCalls

logger = logging.getLogger("locking")

DEFAULTS = {"CACHE": "default", "LOCK": None, "LOCK_TTL": 2.0, "TIMEOUT": 5.0}
CACHE_PAUSE = 1.0
"""Seconds for which a process does not use a cache that has failed."""

T = TypeVar("T")


class Entry(NamedTuple):
    """A value with its age. Times are wall-clock times, which all machines share.

    The cache keeps the value pickled, so that its errors differ from those of the cache.
    """

    value: Any
    fresh_until: float
    version: str | None
    """The namespace's version when the build began; `invalidate` makes it outdated."""

    def is_fresh(self) -> bool:
        """Return True if the value needs no new build."""
        return time.time() < self.fresh_until


@dataclass(frozen=True, slots=True)
class Lookup:
    """The reply of the cache; entry: a value that may be served, fresh or stale."""

    entry: Entry | None
    version: str | None = None
    is_up: bool = True


class SingleFlight:
    """A cache with its lock; `get_or_build` and `invalidate` of this module use the settings' one.

    Options are the keys of settings.LOCK_SINGLE_FLIGHT, which supplies those that are left out.
    """

    def __init__(self, **options: Any) -> None:
        if unknown := options.keys() - DEFAULTS:
            raise LockMisuse(f"SingleFlight has no {', '.join(unknown)}: give {set(DEFAULTS)}.")
        self._options = options
        # By version: a caller that comes after `invalidate` must not join a build from before it.
        self._builds: SharedCalls[tuple[str, str | None], Any] = SharedCalls()
        self._lookups: SharedCalls[str, Lookup] = SharedCalls()
        self._releases = WeakValueDictionary[str, Future[None]]()
        """By key: a release that is under way, for which its builder has not waited."""
        self._cache_paused_until = 0.0
        self._building = threading.local()
        """`keys`: those that this thread builds now, each inside of the one before."""

    def _option(self, name: str) -> Any:
        given = {**DEFAULTS, **getattr(settings, "LOCK_SINGLE_FLIGHT", {}), **self._options}
        return given[name]

    def get_or_build(
        self,
        key: str,
        build: Callable[[], T],
        *,
        ttl: float,
        stale: float = 0.0,
        exists: Callable[[], bool] | None = None,
    ) -> T:
        """Return the value of `key`, from the cache or from `build()`; None is a value.

        ttl: seconds for which the value is fresh. stale: seconds after that for which it is served
        while another caller builds a new one or when the build fails. A caller without any value
        waits at most TIMEOUT seconds, then raises LockTimeout. exists: called before a build if
        there is no value to serve; if it returns False the value is None, kept for `ttl` without
        acquiring the lock, so that invented keys do not fill the cache and the lock store. If the
        cache or the lock is down, each process builds, one thread at a time. An exception of
        `build` or `exists` is raised in every thread of the process that waits for it; the next
        caller tries again. Threads may receive the same object: do not modify it.
        """
        check_name(_lock_name(key))
        are_numbers = is_number(ttl) and is_number(stale)
        if not (are_numbers and 0 < ttl < math.inf and 0 <= stale < math.inf):
            raise LockMisuse(f"ttl is {ttl!r}, stale is {stale!r}: give ttl > 0 and stale >= 0.")
        deadline = time.monotonic() + self._option("TIMEOUT")
        value: T = _Request(self, key, build, ttl, stale, exists, deadline).get()
        return value

    def invalidate(self, *namespaces: str) -> None:
        """Never serve again a value whose build began before this call.

        Call it after the commit. While the cache is down, its values stay until they are too old.
        """
        versions = {_cached("version", namespace): secrets.token_hex(8) for namespace in namespaces}
        try:
            self._cache.set_many(versions, timeout=None)
        except Exception as error:  # noqa: BLE001 - each cache has errors of its own
            logger.warning("Cache unavailable: %s not invalidated: %r", namespaces, error)
        self._lookups.clear()  # later callers must not join a lookup from before the change

    @property
    def _cache(self) -> BaseCache:
        return caches[self._option("CACHE")]

    def _look_up(self, key: str, stale: float) -> Lookup:
        if time.monotonic() < self._cache_paused_until:
            return Lookup(None, is_up=False)
        entry_name = _cached("value", key)
        version_name = _cached("version", key.partition(":")[0])
        try:
            found = self._cache.get_many((entry_name, version_name))
            if (version := found.get(version_name)) is None:  # new, or evicted by the cache
                version = self._cache.get_or_set(version_name, secrets.token_hex(8), timeout=None)
        except Exception as error:  # noqa: BLE001 - each cache has errors of its own
            self._pause_cache(error)
            return Lookup(None, is_up=False)
        entry, kept = None, found.get(entry_name)
        if kept and kept[2] == version and time.time() < kept[1] + stale:
            try:
                entry = Entry(pickle.loads(kept[0]), *kept[1:])  # noqa: S301 - as the cache does
            except Exception as error:  # noqa: BLE001 - a class may be gone or have changed
                logger.warning("Value of %r cannot be read, building it again: %r", key, error)
        return Lookup(entry, version)

    def _store(self, key: str, entry: Entry, seconds: float) -> None:
        try:
            kept = pickle.dumps(entry.value, pickle.HIGHEST_PROTOCOL), *entry[1:]
        except Exception as error:  # noqa: BLE001 - each type has errors of its own
            logger.error("Value of %r cannot be kept: each caller builds it: %r", key, error)
            return
        try:
            # Whole seconds: some caches support no others, and 0 would delete the value.
            self._cache.set(_cached("value", key), kept, timeout=math.ceil(seconds))
        except Exception as error:  # noqa: BLE001 - each cache has errors of its own
            self._pause_cache(error)

    def _pause_cache(self, error: Exception) -> None:
        self._cache_paused_until = time.monotonic() + CACHE_PAUSE
        logger.warning("Cache unavailable: building without it for %g s: %r", CACHE_PAUSE, error)

    def _lock(self, key: str) -> Lock:
        alias, ttl = self._option("LOCK"), self._option("LOCK_TTL")
        make: Callable[..., Lock] = PolicyLock if alias is None else locks[alias].lock
        # A build writes to the cache, also inside a transaction of its caller.
        return make(_lock_name(key), ttl=ttl, until="block")


@dataclass(slots=True)
class _Request:
    """One call of `get_or_build`."""

    home: SingleFlight
    key: str
    build: Callable[[], Any]
    ttl: float
    stale: float
    exists: Callable[[], bool] | None
    deadline: float

    def get(self) -> Any:
        look_up = partial(self.home._look_up, self.key, self.stale)
        while True:
            lookup = self.home._lookups.call(self.key, look_up)
            entry = lookup.entry
            if entry is not None and entry.is_fresh():
                return _serve(self.key, entry)
            if entry is None and self.key in self._under_way():
                raise LockMisuse(f"The build of {self.key!r} asks for itself.")
            build = partial(self._build_once, lookup)
            future, is_mine = self.home._builds.begin((self.key, lookup.version), build)
            if is_mine:
                return future.result()
            if entry is not None:
                return _serve(self.key, entry)
            with suppress(CancelledError):  # the builder was interrupted
                try:
                    error = future.exception(max(0.0, self.deadline - time.monotonic()))
                except TimeoutError:
                    raise self._timed_out() from None
                if error is None:
                    metrics.lookup(self.key, "wait")
                    return future.result()
                if not isinstance(error, LockTimeout):  # LockTimeout: the time of that caller
                    raise error

    def _under_way(self) -> list[str]:
        keys: list[str] = vars(self.home._building).setdefault("keys", [])
        return keys

    def _timed_out(self) -> LockTimeout:
        return LockTimeout(f"{self.key!r} was not built in time.")

    def _build_once(self, lookup: Lookup) -> Any:
        """Return the value, built under the lock or by another process that held it."""
        entry = lookup.entry
        if entry is None and self.exists and not self.exists():
            return self._keep(None, lookup, stale=0.0)
        if not lookup.is_up:
            return self._build(lookup)
        lock = self.home._lock(self.key)
        if release := self.home._releases.pop(self.key, None):
            wait([release], self.home._option("LOCK_TTL"))
        patience = 0.0 if entry else max(0.0, self.deadline - time.monotonic())
        try:
            lease = lock.lease if lock.acquire(timeout=patience) else None
        except LockError:  # above all LockUnavailable: a value matters more than a single build
            return self._build(lookup)
        if lease is None:
            if entry is None:
                raise self._timed_out()
            return _serve(self.key, entry)
        try:
            again = self.home._look_up(self.key, self.stale)
            if again.entry and again.entry.is_fresh():
                return _serve(self.key, again.entry, waited=entry is None)
            return self._build(again, lease)
        finally:
            lease.forget()
            with suppress(RuntimeError):  # no more threads: the lock is free after its ttl
                release = lease.backend.helper.submit(lease.release)
                self.home._releases[self.key] = release

    def _build(self, lookup: Lookup, lease: Lease | None = None) -> Any:
        """Build and keep the value; if the build fails, return the stale one if there is one."""
        started = time.monotonic()
        self._under_way().append(self.key)
        try:
            value = self.build()
        except Exception:
            metrics.lookup(self.key, "failed")
            if lookup.entry is None:
                raise
            logger.warning("Build of %r failed: serving the stale value", self.key, exc_info=True)
            return lookup.entry.value
        finally:
            self._under_way().pop()
        metrics.built(self.key, time.monotonic() - started)
        if lease and lease.lost:  # another builder has taken over and stores a newer value
            return value
        return self._keep(value, lookup, self.stale)

    def _keep(self, value: Any, lookup: Lookup, stale: float) -> Any:
        if lookup.is_up:
            entry = Entry(value, time.time() + self.ttl, lookup.version)
            self.home._store(self.key, entry, self.ttl + stale)
        return value


def _cached(kind: str, name: str) -> str:
    """Return a name in the cache that also Memcached accepts."""
    return f"{kind}:{storable(quote(name, safe=':/'))}"


def _lock_name(key: str) -> ReservedName:
    return ReservedName(BUILD_PREFIX + key)


def _serve(key: str, entry: Entry, *, waited: bool = False) -> Any:
    outcome = "stale" if not entry.is_fresh() else "wait" if waited else "hit"
    metrics.lookup(key, outcome)
    return entry.value


default = SingleFlight()
"""The cache and lock of settings.LOCK_SINGLE_FLIGHT."""
get_or_build = default.get_or_build
invalidate = default.invalidate
