"""Run the benchmark of the locks: interleaved rounds over every system, then their medians.

The arguments are {"backends": [...], "rounds": N, "peers": bool, "missing": {backend: why}}; the
events are the versions, progress, and a row for each system.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from statistics import median
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.db import connections
from redis import Redis

from devservers.faults.worker import emit
from devservers.process_pool import PoolFailed, ProcessPool
from loadtest.bench.locks import floors, peers
from loadtest.bench.locks.measure import (
    CONTENDERS,
    WAIT,
    hammer,
    killed_holder,
    patient_waiter,
    ready,
    uncontended,
    waves,
)
from loadtest.bench.locks.systems import OURS, SYSTEMS, System
from loadtest.bench.services import requests_of
from loadtest.kernel.topology import Stores
from loadtest.load.runner import versions
from loadtest.load.verdict import percentile
from locking import locks

__all__ = ["floors", "main", "peers"]  # importing them registers their systems

HAMMER_SECONDS = 1.5
WAVES = 5
_serial = count(1)


def main(asked: dict[str, Any], stores: Stores) -> None:
    """Measure the backends, their floors and their peers."""
    chosen = [alias for alias in asked["backends"] if alias not in stores.missing]
    if not chosen or "database" in stores.missing:
        return
    call_command("migrate", "locking", verbosity=0, interactive=False)
    emit("versions", versions=versions())
    families = {OURS[alias][0] for alias in chosen}
    systems = [
        system
        for system in SYSTEMS
        if system.family in families
        and (system.role != "ours" or system.name.removesuffix(" writer") in chosen)
        and (system.role != "peer" or asked["peers"])
    ]
    rows = {system.name: _Row(system) for system in systems}
    steps = asked["rounds"] + 1
    for step in range(1, steps + 1):
        for family in sorted(families):
            if step < steps:
                emit("progress", step=step, of=steps, system=f"{family}, uncontended")
                _uncontended([row for row in rows.values() if row.system.family == family])
        for row in rows.values():
            emit("progress", step=step, of=steps, system=row.system.name)
            row.measure(_round if step < steps else _once)
    for row in rows.values():
        emit("row", row=row.summary())


def _uncontended(rows: "list[_Row]") -> None:
    """Measure all systems of a family in alternating slices of one process."""
    able = {row.system.name: row for row in rows if not row.why}
    _close_connections()
    found = uncontended([row.system for row in able.values()], _name())
    for name, slices in found.items():
        for rate, cpu in slices:
            able[name].add(pairs_per_second=rate, pair_cpu_us=cpu * 1e6)


def _close_connections() -> None:
    """Close what a forked process must not share with its parent."""
    connections.close_all()
    locks.close()


class _Row:
    """The measurements of one system."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.samples: dict[str, list[float]] = {}
        self.hand_offs: list[float] = []
        self.why = "" if system.is_installed else f"{system.needs} is not installed"

    def measure(self, step: "Callable[[_Row], None]") -> None:
        """Run a step; a system that fails is skipped from then on, with the reason in `why`."""
        if self.why or not self.system.waits:
            return
        _close_connections()
        try:
            step(self)
        except PoolFailed as failed:
            self.why = str(failed).strip().splitlines()[-1]

    def add(self, **values: float) -> None:
        """Add one sample of each figure."""
        for name, value in values.items():
            self.samples.setdefault(name, []).append(value)

    def summary(self) -> dict[str, Any]:
        """Return the medians of the rounds, and the maximum of the worst waits."""
        system = self.system
        row: dict[str, Any] = {"system": system.name, "family": system.family, "role": system.role}
        row |= {name: round(median(values), 4) for name, values in self.samples.items()}
        if "worst_wait_ms" in self.samples:
            row["worst_wait_ms"] = round(max(self.samples["worst_wait_ms"]), 1)
            for share in (50, 99):
                row[f"hand_off_ms_p{share}"] = round(
                    percentile(self.hand_offs, share / 100) * 1000, 3
                )
        return row | {"why": self.why}


def _name() -> str:
    return f"bench-{next(_serial)}"


def _round(row: _Row) -> None:
    """Measure what varies from round to round."""
    system = row.system
    row.add(wave_ms=median(waves(system, _name(), WAVES)) * 1000)
    contention = hammer(system, _name(), HAMMER_SECONDS, requests_of(system.family))
    row.hand_offs += contention.hand_offs
    row.add(
        worst_wait_ms=contention.worst_wait * 1000,
        jain=contention.jain,
        commands=contention.requests.commands / contention.grants,
        round_trips=contention.requests.reads / contention.grants,
        contended_cpu_us=contention.cpu / contention.grants * 1e6,
    )


def _once(row: _Row) -> None:
    """Measure what takes long and varies little."""
    system = row.system
    requests = requests_of(system.family)
    row.add(after_killed_s=killed_holder(system, _name()))
    row.add(waiter_requests=patient_waiter(system, _name(), requests).reads)
    if system.role == "ours" or system.family == "redis":
        few = hammer(system, _name(), HAMMER_SECONDS, requests)
        many = hammer(system, _name(), HAMMER_SECONDS, requests, threads=64 // CONTENDERS)
        per_grant = [one.requests.commands / one.grants for one in (few, many)]
        row.add(commands_64_to_8=per_grant[1] / per_grant[0])
    if system.name == "redlock":
        row.add(minority_down_ms=_minority_down(system) * 1000)


def _minority_down(system: System) -> float:
    """Return the slowest of 20 acquisitions, in seconds, with two of five masters stopped."""

    def work(number: int) -> float:
        handle = ready(system, _name())
        slowest = 0.0
        with _stopped(settings.REDLOCK_URLS[:2]):
            for _ in range(20):
                started = time.monotonic()
                handle.acquire(WAIT)
                slowest = max(slowest, time.monotonic() - started)
                handle.release()
        return slowest

    with ProcessPool(work) as pool:
        return float(pool.results()[0])


@contextmanager
def _stopped(urls: list[str]) -> Iterator[None]:
    """Stop the private servers with SIGSTOP until the block ends."""
    pids = []
    for url in urls:
        with Redis.from_url(url) as client:
            pids.append(client.info("server")["process_id"])
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
