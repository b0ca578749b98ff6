"""Ask several stores for a sign of life at once, and wait for none of them longer than for all."""

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
class Probed:
    """What one probe brought."""

    ms: float | None = None
    """How long it took; None when it failed."""
    error: str = ""
    value: Any = None
    """What the probe returned."""

    @property
    def ok(self) -> bool:
        """Whether the store is usable."""
        return not self.error


def probe_all(probes: Mapping[str, Callable[[], Any]], *, seconds: float) -> dict[str, Probed]:
    """Run every probe in a thread of its own; who has not answered after `seconds` is down."""
    pool = ThreadPoolExecutor(max(1, len(probes)))
    deadline = time.monotonic() + seconds
    running = {name: pool.submit(_timed, probe) for name, probe in probes.items()}
    found = {}
    for name, probe in running.items():
        try:
            found[name] = probe.result(timeout=max(0.0, deadline - time.monotonic()))
        except TooSlow:
            found[name] = Probed(error=f"no answer in {seconds:g} s")
        except Exception as error:  # noqa: BLE001 - whatever it is, the store is not usable
            found[name] = Probed(error=type(error).__name__)
    pool.shutdown(wait=False)  # a probe that hangs ends at its client's own time-out
    return found


def _timed(probe: Callable[[], Any]) -> Probed:
    begun = time.monotonic()
    try:
        value = probe()
    finally:
        ms = round((time.monotonic() - begun) * 1000, 1)
        connection.close()  # this thread's own
    return Probed(ms=ms, value=value)


def database() -> None:
    """The smallest question."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def ping(url: str) -> None:
    """Ask a Redis, on a connection of its own."""
    options = {"socket_timeout": 0.5, "socket_connect_timeout": 1, "retry": Retry(NoBackoff(), 0)}
    with Redis.from_url(url, **options) as client:
        client.ping()


def cache() -> None:
    """The Redis of cache, sessions and queued sales."""
    ping(settings.REDIS_URL)


def lock_in_force() -> None:
    """The backend that purchases need now."""
    locks[policy.current().backend].probe()
