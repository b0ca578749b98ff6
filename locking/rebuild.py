"""One rebuild of a cached value, whoever asks for it and wherever (REQUIREMENTS U4).

    from locking import single_flight

    lists = single_flight.get_or_build("home:en", build, ttl=1, stale=5)

Over Django's cache. While one thread of one process builds, whoever has an older value goes on with
that at once, and whoever has none waits for the new one: the other threads for their process's own
builder, its first one in the queue of the lock, where the release wakes it. What stands before a
key's first colon is its family: `invalidate` and the counters go by it.

settings.LOCK_SINGLE_FLIGHT = {
    "CACHE": "default",    # alias in CACHES
    "LOCK": "redis",       # alias in LOCKS; None for the one that the policy has in force
    "LOCK_TTL": 2.0,       # seconds after which a builder that died is replaced
    "TIMEOUT": 5.0,        # seconds that a caller without any value waits
}
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from django.conf import settings
from django.core.cache import BaseCache, caches
from django.db import connections

from locking import metrics
from locking.arguments import check_name
from locking.exceptions import LockError, LockMisuse, LockTimeout
from locking.handler import locks
from locking.lease import Lock
from locking.policy.lock import PolicyLock

logger = logging.getLogger("locking")

DEFAULTS = {"CACHE": "default", "LOCK": None, "LOCK_TTL": 2.0, "TIMEOUT": 5.0}
SILENCE = 1.0
"""Seconds for which a process leaves a cache alone that did not answer."""
LATE = 0.25
"""Seconds after which an answer of the cache is late: a build asks it, and the lock, five times
more. Whoever has an older value then goes on with that, also where it is he who leads the build."""

T = TypeVar("T")


class Entry(NamedTuple):
    """A value as the cache keeps it; times by the wall clock, which all machines share."""

    value: Any
    fresh_until: float
    version: str | None
    """The family's when the build began: what was invalidated meanwhile is never served."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the cache said."""

    entry: Entry | None
    version: str | None = None
    is_up: bool = True
    is_late: bool = False

    def is_fresh(self) -> bool:
        """Return True if the cache has a value that needs no rebuild."""
        return self.entry is not None and time.time() < self.entry.fresh_until

    def is_newer_than(self, other: Look) -> bool:
        """Whether somebody has built since."""
        before = other.entry.fresh_until if other.entry else -math.inf
        return self.entry is not None and self.entry.fresh_until > before


class SingleFlight:
    """Values built once for all processes; the settings' one is `locking.single_flight`.

    Options as in settings.LOCK_SINGLE_FLIGHT, which gives those that are left out.
    """

    def __init__(self, **options: Any) -> None:
        if unknown := options.keys() - DEFAULTS:
            raise LockMisuse(f"SingleFlight has no {', '.join(unknown)}: give {set(DEFAULTS)}.")
        self._options = options
        # By process too: a forked child has none of its parent's threads. By version: who comes
        # after a change must not join a build that read before it.
        self._flights: dict[tuple[int, str, str | None], Future[Any]] = {}
        self._looks: dict[tuple[int, str], Future[Look]] = {}
        self._silent_until = 0.0

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

        ttl: seconds for which it is fresh. stale: seconds beyond, for which it is served while
        another caller builds a new one, or when that fails. Where there is nothing to serve it
        waits TIMEOUT seconds, then raises LockTimeout. exists: called before a build where there is
        nothing to serve; if it returns False the value is None, kept for `ttl` alone and without
        the lock, so that made-up keys do not fill the cache and the lock store. Without cache or
        lock it builds, once at a time in this process. What `build` or `exists` raises is raised
        for every caller that waits for it in this process; the next caller tries again.
        Threads may get the same object: do not change it.
        """
        check_name(_lock_name(key))
        if not (0 < ttl < math.inf and 0 <= stale < math.inf):
            raise LockMisuse(f"ttl is {ttl}, stale is {stale}: give ttl > 0 and stale >= 0.")
        deadline = time.monotonic() + self._option("TIMEOUT")
        value: T
        while True:
            look = self._look_together(key, stale)
            mine: Future[T] = Future()
            if look.entry is not None and look.is_fresh():
                value = _serve(key, look.entry)
            elif (flight := self._flights.setdefault(_seat(key, look), mine)) is mine:
                builder = _Builder(self, key, build, ttl, stale, exists)
                if look.entry is None or not look.is_late:
                    value = self._lead(builder, look, mine, deadline)
                else:
                    self._lead_apart(builder, look, mine, deadline)
                    value = _serve(key, look.entry)
            elif look.entry is not None:
                value = _serve(key, look.entry)
            else:
                try:
                    value = _follow(key, flight, deadline)
                except CancelledError:
                    continue  # it was interrupted, or its time was over: perhaps it is our turn
            return value

    def invalidate(self, *families: str) -> None:
        """Never serve again what was built, or is being built, from what is true until now.

        Call it after the commit. A cache that is down keeps what it has until that is too old.
        """
        try:
            self._cache.set_many(
                {_version_name(family): secrets.token_hex(8) for family in families}, timeout=None
            )
        except Exception as error:  # noqa: BLE001 - each cache has errors of its own
            logger.warning("the cache does not answer, %s stays: %r", families, error)
        self._looks.clear()  # who comes from now on asks anew

    @property
    def _cache(self) -> BaseCache:
        return caches[self._option("CACHE")]

    def _look_together(self, key: str, stale: float) -> Look:
        """One question for all threads that ask while it is under way."""
        mine: Future[Look] = Future()
        asked = self._looks.setdefault((os.getpid(), key), mine)
        if asked is not mine:
            with suppress(CancelledError):  # whoever asked was interrupted
                return asked.result()
            return self._look(key, stale)
        try:
            look = self._look(key, stale)
            mine.set_result(look)
            return look
        finally:
            self._looks.pop((os.getpid(), key), None)
            mine.cancel()  # where it has no result

    def _look(self, key: str, stale: float) -> Look:
        if time.monotonic() < self._silent_until:
            return Look(None, is_up=False)
        names = _entry_name(key), _version_name(_family(key))
        asked = time.monotonic()
        try:
            found = self._cache.get_many(names)
            entry = Entry(*found[names[0]]) if names[0] in found else None
        except Exception as error:  # noqa: BLE001 - each cache has errors of its own
            self._silence(error)
            return Look(None, is_up=False)
        version = found.get(names[1])
        if entry and (entry.version != version or time.time() >= entry.fresh_until + stale):
            entry = None
        return Look(entry, version, is_late=time.monotonic() - asked > LATE)

    def _silence(self, error: Exception) -> None:
        self._silent_until = time.monotonic() + SILENCE
        logger.warning("the cache does not answer, building without it: %r", error)

    def _store(self, key: str, entry: Entry, seconds: float) -> None:
        try:
            # Whole seconds: some caches know no others, and 0 would delete it.
            self._cache.set(_entry_name(key), tuple(entry), timeout=math.ceil(seconds))
        except Exception as error:  # noqa: BLE001 - each cache has errors of its own
            self._silence(error)

    def _lock(self, key: str) -> Lock | PolicyLock:
        alias, ttl = self._option("LOCK"), self._option("LOCK_TTL")
        if alias is None:
            return PolicyLock(_lock_name(key), ttl=ttl)
        return locks[alias].lock(_lock_name(key), ttl=ttl)

    def _lead(self, builder: _Builder, look: Look, flight: Future[T], deadline: float) -> T:
        """Build, or find that another process does."""
        try:
            value: T = self._under_lock(builder, look, deadline)
            flight.set_result(value)
            return value
        except LockTimeout:
            raise  # this caller's time was over; the others have theirs
        except Exception as error:
            flight.set_exception(error)
            raise
        finally:
            del self._flights[_seat(builder.key, look)]
            flight.cancel()  # where nothing else ended it

    def _lead_apart(self, *flight: Any) -> None:
        """The same in a thread of its own, for a caller who does not wait."""

        def lead() -> None:
            try:
                self._lead(*flight)
            except Exception:  # nobody waits for it; the next caller tries again
                logger.warning("%r was not built", flight[0].key, exc_info=True)
            finally:
                connections.close_all()  # this thread's own

        try:
            threading.Thread(target=lead, name="build", daemon=True).start()
        except RuntimeError:  # no more threads
            self._lead(*flight)

    def _under_lock(self, builder: _Builder, look: Look, deadline: float) -> Any:
        key = builder.key
        if look.entry is None and builder.exists and not builder.exists():
            return builder.keep(None, look, stale=0.0)
        if not look.is_up:
            return builder.run(look)
        lock = self._lock(key)
        wait = 0.0 if look.entry else max(0.0, deadline - time.monotonic())
        try:
            is_ours = lock.acquire(timeout=wait)
        except LockError:  # above all LockUnavailable: the value matters more than who builds
            return builder.run(look)
        if not is_ours:
            if look.entry is None:
                raise LockTimeout(f"{key!r} was not built within the time to wait.")
            return _serve(key, look.entry)
        try:
            again = self._look(key, builder.stale)
            if again.entry is not None and again.is_newer_than(look) and again.is_fresh():
                return _serve(key, again.entry, waited=look.entry is None)
            return builder.run(again, lock)
        finally:
            with suppress(LockError):  # a builder that was late has its value all the same
                lock.release()


@dataclass(slots=True)
class _Builder:
    """How one value is built and kept."""

    home: SingleFlight
    key: str
    build: Callable[[], Any]
    ttl: float
    stale: float
    exists: Callable[[], bool] | None

    def run(self, look: Look, lock: Lock | PolicyLock | None = None) -> Any:
        """Build; the older value when that fails and there is one."""
        begun = time.monotonic()
        try:
            value = self.build()
        except Exception:
            metrics.flown(self.key, "failed")
            if look.entry is None:
                raise
            logger.warning("%r could not be built, the old one stays", self.key, exc_info=True)
            return look.entry.value
        metrics.built(self.key, time.monotonic() - begun)
        lease = lock.lease if lock else None
        if lease and lease.lost:  # another took over: there is nothing new to say
            return value
        return self.keep(value, look, self.stale)

    def keep(self, value: Any, look: Look, stale: float) -> Any:
        """Store it where the cache is up."""
        if look.is_up:
            entry = Entry(value, time.time() + self.ttl, look.version)
            self.home._store(self.key, entry, self.ttl + stale)
        return value


def _serve(key: str, entry: Entry, *, waited: bool = False) -> Any:
    fresh = "wait" if waited else "hit"
    metrics.flown(key, fresh if time.time() < entry.fresh_until else "stale")
    return entry.value


def _follow(key: str, flight: Future[T], deadline: float) -> T:
    """What this process's builder brings."""
    try:
        error = flight.exception(timeout=max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        raise LockTimeout(f"{key!r} was not built within the time to wait.") from None
    if error is not None:
        raise error
    metrics.flown(key, "wait")
    return flight.result()


def _seat(key: str, look: Look) -> tuple[int, str, str | None]:
    return os.getpid(), key, look.version


def _family(key: str) -> str:
    return key.partition(":")[0]


def _entry_name(key: str) -> str:
    return f"built:{key}"


def _version_name(family: str) -> str:
    return f"version:{family}"


def _lock_name(key: str) -> str:
    return f"build:{key}"


single_flight = SingleFlight()
