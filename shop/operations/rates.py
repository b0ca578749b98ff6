"""Rates and waiting times of each kind of lock, from the metrics."""

from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from django.core.cache import caches
from django.utils import timezone

from locking import metrics

SAMPLE = "ops-sample"
SAMPLE_TIMEOUT = 600
"""Seconds for which a sample is kept, to be compared with the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One kind of lock in one backend, since the last sample."""

    backend: str
    kind: str
    per_second: float
    refused_per_second: float
    """Acquires that timed out or found the store unavailable."""
    p50_ms: float | None
    p99_ms: float | None
    """Waiting time, as the upper bound of the histogram's bucket; None without an acquired lock."""
    lost: int
    """Leases lost since the process started."""


def read_traffic() -> tuple[list[Traffic], float | None]:
    """Return the rates since the cached sample and the seconds since then; renew the sample."""
    now = timezone.now()
    totals = metrics.totals()
    names = ("locking_attempts_total", "locking_wait_seconds_bucket")
    sample = {name: totals.get(name, {}) for name in names}
    last: tuple[datetime, Any] | None = caches["optional"].get(SAMPLE)
    caches["optional"].set(SAMPLE, (now, sample), timeout=SAMPLE_TIMEOUT)
    span = (now - last[0]).total_seconds() if last else 0.0
    if last is None or span <= 0:
        return [], None
    grown = {
        name: {labels: max(0.0, value - last[1][name].get(labels, 0.0)) for labels, value in of}
        for name, of in ((name, sample[name].items()) for name in names)
    }
    lost = totals.get("locking_lost_total", {})
    found = []
    attempts = sorted(grown[names[0]].items())
    for (alias, kind), outcomes in groupby(attempts, key=lambda one: one[0][:2]):
        by = {labels[2]: value for labels, value in outcomes}
        buckets = {
            float(labels[2]): value
            for labels, value in grown[names[1]].items()
            if labels[:2] == (alias, kind)
        }
        found.append(
            Traffic(
                backend=alias,
                kind=kind,
                per_second=by.pop("acquired", 0.0) / span,
                refused_per_second=sum(by.values()) / span,
                p50_ms=_quantile(buckets, 0.5),
                p99_ms=_quantile(buckets, 0.99),
                lost=int(lost.get((alias, kind), 0)),
            )
        )
    return found, span


def _quantile(buckets: dict[float, float], share: float) -> float | None:
    """Return the milliseconds below which `share` of the waits lie; the buckets are cumulative."""
    total = max(buckets.values(), default=0.0)
    if not total:
        return None
    return 1000 * min(bound for bound, count in buckets.items() if count >= share * total)
