"""Rates and waiting times of each kind of lock, from the metrics."""

from collections import Counter
from typing import NamedTuple

from django.core.cache import caches
from django.utils import timezone

from locking import metrics

SAMPLE = "lock-sample"
SAMPLE_TIMEOUT = 600
"""Seconds for which a sample is kept, to be compared with the next one."""
NAMES = ("locking_attempts_total", "locking_wait_seconds_bucket")


class Traffic(NamedTuple):
    """One kind of lock in one backend, since the last sample."""

    backend: str
    kind: str
    per_second: float
    refused_per_second: float
    """Acquires that timed out or found the store unavailable."""
    p50_ms: float | None
    """Waiting time, as the upper bound of the histogram's bucket; None without an acquired lock."""
    p99_ms: float | None
    lost: int
    """Leases lost since the process started."""


def read_traffic() -> tuple[list[Traffic], float | None]:
    """Return the rates since the cached sample and the seconds since then; renew the sample."""
    now, totals = timezone.now(), metrics.totals()
    sample = [Counter(totals.get(name, {})) for name in NAMES]
    last = caches["optional"].get(SAMPLE)
    caches["optional"].set(SAMPLE, (now, sample), timeout=SAMPLE_TIMEOUT)
    span = (now - last[0]).total_seconds() if last else 0.0
    if span <= 0:
        return [], None
    attempts, waits = (new - old for new, old in zip(sample, last[1], strict=True))
    found = []
    for backend, kind in sorted({labels[:2] for labels in sample[0]}):
        outcomes = {of[2]: count for of, count in attempts.items() if of[:2] == (backend, kind)}
        buckets = {float(of[2]): count for of, count in waits.items() if of[:2] == (backend, kind)}
        found.append(
            Traffic(
                backend,
                kind,
                per_second=outcomes.pop("acquired", 0.0) / span,
                refused_per_second=sum(outcomes.values()) / span,
                p50_ms=_quantile(buckets, 0.5),
                p99_ms=_quantile(buckets, 0.99),
                lost=int(totals.get("locking_lost_total", {}).get((backend, kind), 0)),
            )
        )
    return found, span


def _quantile(buckets: dict[float, float], share: float) -> float | None:
    """Return the milliseconds below which `share` of the waits lie; the buckets are cumulative."""
    total = max(buckets.values(), default=0.0)
    if not total:
        return None
    return 1000 * min(bound for bound, count in buckets.items() if count >= share * total)
