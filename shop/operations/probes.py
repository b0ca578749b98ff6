"""Health probes of several stores, run in parallel within one time limit."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooSlow
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import connection
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from locking import locks, policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The result of one probe."""

    ms: float | None = None
    """Milliseconds that the probe took; None if it failed."""
    error: str = ""
    value: Any = None
    """The probe's return value."""

    @property
    def ok(self) -> bool:
        """True if the probe succeeded."""
        return not self.error


def probe_all(probes: Mapping[str, Callable[[], Any]], *, seconds: float) -> dict[str, ProbeResult]:
    """Run each probe in its own thread; one that has not returned after `seconds` has failed."""
    pool = ThreadPoolExecutor(max(1, len(probes)))
    deadline = time.monotonic() + seconds
    running = {name: pool.submit(_timed, probe) for name, probe in probes.items()}
    found = {}
    for name, probe in running.items():
        try:
            found[name] = probe.result(timeout=max(0.0, deadline - time.monotonic()))
        except TooSlow:
            found[name] = ProbeResult(error=f"no answer in {seconds:g} s")
        except Exception as error:  # noqa: BLE001 - after any error the store counts as down
            found[name] = ProbeResult(error=type(error).__name__)
    pool.shutdown(wait=False)  # a probe that hangs ends at its client's own timeout
    return found


def _timed(probe: Callable[[], Any]) -> ProbeResult:
    began = time.monotonic()
    try:
        value = probe()
    finally:
        ms = round((time.monotonic() - began) * 1000, 1)
        connection.close()  # the connection of this thread
    return ProbeResult(ms=ms, value=value)


def probe_database() -> None:
    """Run a query."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def ping(url: str) -> None:
    """Ping a Redis server on a new connection."""
    options = {"socket_timeout": 0.5, "socket_connect_timeout": 1, "retry": Retry(NoBackoff(), 0)}
    with Redis.from_url(url, **options) as client:
        client.ping()


def probe_redis() -> None:
    """Ping the Redis of queued sales, flags and messages."""
    ping(settings.REDIS_URL)


def probe_cache() -> None:
    """Ping the Redis of pages, copies of web sessions and rate limits."""
    ping(settings.CACHE_URL)


def probe_active_lock() -> None:
    """Probe the active lock backend, which purchases need."""
    locks[policy.current().backend].probe()
