"""`manage.py lab bench cache`: 200 readers want one cached value; one builds, the others wait.

Four processes of fifty threads on a private Redis. `main` measures there, rounds interleaved; the
rest makes the report. A build takes BUILD seconds, as a slow query does.
"""

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median
from typing import Any

from django.core.cache import caches

from devservers.faults.worker import emit
from devservers.process_pool import ProcessPool, StartGate
from inventory.management.console import Rows
from loadtest.bench.results import Progress, measure, remarks
from loadtest.load.runner import versions
from loadtest.load.verdict import percentile
from locking.single_flight import SingleFlight

__all__ = ["bench", "is_sound", "main", "remarks", "table"]

PROCESSES, THREADS = 4, 50
BUILD = 0.2
LEASE = 1.0
KILLED = 2
FRESH: dict[str, Any] = {"ttl": 3600.0, "stale": 3600.0}
EXPIRED: dict[str, Any] = {"ttl": 1e-6, "stale": 3600.0}
MAX_MEDIAN_MS = 2.0

LINES = {
    "fresh": "fresh key, all at once",
    "cold": "cold key, all at once",
    "expired": "expired key, all at once",
    "arriving": f"expired key, arriving within {BUILD:g} s",
    "killed": f"cold key, {KILLED} builders killed, lease {LEASE:g} s",
    "control": "control: cold key, plain cache",
}
SHARES = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}

_fork = multiprocessing.get_context("fork")


class _Round:
    """The readers of one key, and the start times of its builds."""

    def __init__(self, line: str, number: int) -> None:
        self.line = line
        self.key = f"bench:{line}:{number}"
        self.single_flight = SingleFlight(LOCK_TTL=LEASE, TIMEOUT=60.0)
        self.started = _fork.Array("d", PROCESSES * THREADS)
        self.gate = StartGate(PROCESSES)

    def measure(self) -> dict[str, Any]:
        if self.line in ("expired", "arriving", "fresh"):
            ages = FRESH if self.line == "fresh" else EXPIRED
            self.single_flight.get_or_build(self.key, lambda: "old", **ages)
        with ProcessPool(self.process, PROCESSES) as pool:
            waits = [wait for process in pool.survivors() for wait in process]
        started = [at for at in self.started[:] if at]
        gaps = [later - earlier for earlier, later in pairwise(started)]
        ms = {name: 1000 * percentile(waits, share) for name, share in SHARES.items()}
        return {
            "builds": len(started),
            "readers": len(waits),
            "shortest_gap_s": round(min(gaps, default=0.0), 3),
            **{name: round(value, 2) for name, value in ms.items()},
        }

    def process(self, number: int) -> list[float]:
        """Return the wait of each reader of one process, in seconds."""
        ready, chance = threading.Barrier(THREADS + 1), random.Random(number)
        delays = [chance.uniform(0, BUILD) * (self.line == "arriving") for _ in range(THREADS)]

        def read(place: int) -> float:
            self.get(f"bench:warm:{place}", lambda: None)  # as a web thread, it has a connection
            ready.wait()
            ready.wait()
            time.sleep(delays[place])
            began = time.monotonic()
            self.get(self.key, self.build)
            return time.monotonic() - began

        with ThreadPoolExecutor(THREADS) as pool:
            waits = pool.map(read, range(THREADS))
            ready.wait()
            self.gate()
            ready.wait()
            return list(waits)

    def get(self, key: str, build: Callable[[], Any]) -> Any:
        if self.line != "control":
            return self.single_flight.get_or_build(key, build, **FRESH)
        cache = caches["default"]
        if (value := cache.get(key)) is None:
            value = build()
            cache.set(key, value)
        return value

    def build(self) -> str:
        with self.started.get_lock():
            number = sum(1 for at in self.started[:] if at)
            self.started[number] = time.monotonic()
        if self.line == "killed" and number < KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(BUILD)
        return "new"


def main(asked: dict[str, Any]) -> None:
    """Measure `asked["rounds"]` rounds of every line."""
    emit("versions", versions=versions())
    for number in range(asked["rounds"]):
        for step, line in enumerate(LINES):
            about = {"system": LINES[line], "step": number * len(LINES) + step + 1}
            emit("progress", **about, of=asked["rounds"] * len(LINES))
            emit("round", line=line, round=_Round(line, number).measure())


def bench(asked: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Return the report of {"rounds"}; `progress` receives every event."""
    fixed = {"processes": PROCESSES, "threads": THREADS, "build_s": BUILD, "lease_s": LEASE}
    report, measured = measure("cache", "sqlite", asked | fixed, progress)
    report["lines"] = [
        {
            "line": line,
            "builds": [one["builds"] for one in done],
            **{name: round(median(one[name] for one in done), 2) for name in SHARES},
            "rounds": done,
        }
        for line, done in measured.items()
    ]
    report["targets"] = [] if report["missing"] else list(targets(measured))
    return report


def targets(measured: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield each target, and whether the rounds meet it."""

    def builds(line: str) -> set[int]:
        return {one["builds"] for one in measured[line]}

    def typical(line: str) -> float:
        return float(median(one["p50_ms"] for one in measured[line]))

    extra, arriving = typical("expired") - typical("fresh"), typical("arriving")
    gap = min(one["shortest_gap_s"] for one in measured["killed"])
    limit = f"< {MAX_MEDIAN_MS:g} ms"
    beyond = f"expired, at once: median wait beyond a fresh key's {limit} ({extra:.2f})"
    one_more = f"killed: one more build per lease (shortest gap {gap:g} s)"
    for target, met in (
        ("cold key: one build", builds("cold") == {1}),
        ("expired key: one build", builds("expired") == builds("arriving") == {1}),
        (beyond, extra < MAX_MEDIAN_MS),
        (f"expired, arriving: median wait {limit} ({arriving:.2f})", arriving < MAX_MEDIAN_MS),
        (one_more, builds("killed") == {KILLED + 1} and gap > 0.9 * LEASE),
        ("control: many builds", min(builds("control")) > PROCESSES),
    ):
        yield {"target": target, "met": met}


def is_sound(report: dict[str, Any]) -> bool:
    """Return True if all was measured and every target that no machine's speed affects is met."""
    return not report["missing"] and all(
        target["met"] for target in report["targets"] if " ms " not in target["target"]
    )


def table(report: dict[str, Any]) -> tuple[Sequence[str], Rows]:
    """Return the measurements."""
    rows = [
        [
            LINES[row["line"]],
            ", ".join(map(str, row["builds"])),
            *(f"{row[name]:.2f}" for name in SHARES),
        ]
        for row in report["lines"]
    ]
    return ("200 readers", "builds", "p50 ms", "p99 ms", "longest ms"), rows
