"""Health probes of several stores, run in parallel within one time limit."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import connection

from shop.platform.redis import Address, command

Probe = Callable[[], Any]


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


def probe_all(probes: Mapping[str, Probe], *, seconds: float) -> dict[str, ProbeResult]:
    """Run each probe in its own thread; one that has not returned after `seconds` has failed."""
    pool = ThreadPoolExecutor(max(1, len(probes)))
    running = {name: pool.submit(_run, probe) for name, probe in probes.items()}
    done, _ = wait(running.values(), timeout=seconds)
    pool.shutdown(wait=False)  # a probe that hangs ends at its client's own timeout
    late = ProbeResult(error=f"no reply in {seconds:g} s")
    return {name: one.result() if one in done else late for name, one in running.items()}


def _run(probe: Probe) -> ProbeResult:
    began = time.monotonic()
    try:
        value = probe()
        return ProbeResult(ms=round((time.monotonic() - began) * 1000, 1), value=value)
    except Exception as error:  # noqa: BLE001 - after any error the store counts as down
        return ProbeResult(error=type(error).__name__)
    finally:
        connection.close()  # the connection of this thread


def _probe_redis() -> None:
    for url in {settings.REDIS_URL, settings.QUEUE_REDIS_URL}:
        command("PING", at=Address(url, ""))  # of a Cluster, one node


def _probe_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


STORES: dict[str, Probe] = {
    "database": _probe_database,
    "redis": _probe_redis,
    "cache": lambda: command("PING", at=Address(settings.CACHE_URL, "")),
}
