"""Counters and histograms of the locks, for Prometheus.

The label `kind` is the namespace of a lock name or cache key: the part before its first colon. A
whole name is never a label. After `MAX_KINDS` namespaces, further ones are counted as "other".
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.multiprocess import MultiProcessCollector
except ImportError:  # the extra "prometheus" is not installed: nothing is counted

    class _Nothing:
        """A metric, a collector or a registry without metrics."""

        def __init__(self, *args: object, **kwargs: object) -> None: ...

        def __getattr__(self, name: str) -> Any:
            return lambda *args: [] if name == "collect" else self

    REGISTRY = _Nothing()  # type: ignore[assignment]
    CollectorRegistry = Counter = Histogram = MultiProcessCollector = _Nothing  # type: ignore[assignment, misc]

MAX_KINDS = 32
BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

PLACE = ["backend", "kind"]

OUTCOMES = Counter("locking_attempts_total", "Attempts to acquire a lock", [*PLACE, "outcome"])
KEYS = Counter("locking_idempotency_total", "Requests with an idempotency key", ["outcome"])
LOST = Counter("locking_lost_total", "Leases that ended before their release", PLACE)
WAIT = Histogram(
    "locking_wait_seconds", "Time from the request to the grant", PLACE, buckets=BUCKETS
)
HOLD = Histogram(
    "locking_hold_seconds", "Time from the grant to the release", PLACE, buckets=BUCKETS
)
LOOKUPS = Counter(
    "locking_single_flight_total", "Calls of single_flight.get_or_build", ["kind", "outcome"]
)
BUILD = Histogram("locking_build_seconds", "Builds of a cached value", ["kind"], buckets=BUCKETS)
JOBS = Counter("locking_job_runs_total", "Runs of run_once tasks", ["task", "outcome"])

kinds: set[str] = set()
"""The namespaces that have a label of their own."""


def registry() -> CollectorRegistry:
    """Return the metrics of all processes if PROMETHEUS_MULTIPROC_DIR is set, else of this one."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return REGISTRY
    combined = CollectorRegistry()
    MultiProcessCollector(combined)  # type: ignore[no-untyped-call]
    return combined


def kind_of(name: str) -> str:
    """Return the label for a lock name."""
    kind, colon, _ = name.partition(":")
    if not colon:
        return "plain"
    if kind not in kinds:
        if len(kinds) >= MAX_KINDS:
            return "other"
        kinds.add(kind)
    return kind


# Cached, because labels() computes a hash and takes a lock on every call.
@lru_cache(maxsize=1024)
def _of_grants(backend: str, kind: str) -> tuple[Counter, Histogram, Histogram]:
    # Create it at 0: Prometheus sees no increase in a series that starts at 1.
    LOST.labels(backend, kind)
    place = backend, kind
    return OUTCOMES.labels(*place, "acquired"), WAIT.labels(*place), HOLD.labels(*place)


def acquired(backend: str, name: str, seconds: float) -> None:
    """Count a grant that took `seconds` to arrive."""
    count, wait, _ = _of_grants(backend, kind_of(name))
    count.inc()
    wait.observe(seconds)


def not_acquired(backend: str, name: str, outcome: str) -> None:
    """Count an attempt without a grant; the outcome is timeout or unavailable."""
    OUTCOMES.labels(backend, kind_of(name), outcome).inc()


def released(backend: str, name: str, seconds: float) -> None:
    """Count a lease released after `seconds`."""
    _of_grants(backend, kind_of(name))[2].observe(seconds)


def lost(backend: str, name: str) -> None:
    """Count a lease that ended before its release."""
    LOST.labels(backend, kind_of(name)).inc()


@lru_cache(maxsize=256)
def _of_lookups(kind: str, outcome: str) -> Counter:
    return LOOKUPS.labels(kind, outcome)


def lookup(key: str, outcome: str) -> None:
    """Count a value returned by single_flight (hit, stale, wait, rebuild) or a failed build."""
    _of_lookups(kind_of(key), outcome).inc()


def built(key: str, seconds: float) -> None:
    """Count a build that succeeded, and its duration."""
    lookup(key, "rebuild")
    BUILD.labels(kind_of(key)).observe(seconds)


def job(task: str, outcome: str) -> None:
    """Count a job run: done, failed (for good), tried_again, taken_over or turned_away."""
    JOBS.labels(task, "failed")  # create it at 0, before the first failure
    JOBS.labels(task, outcome).inc()
