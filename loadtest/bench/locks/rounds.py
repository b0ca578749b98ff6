"""The benchmark itself: interleaved rounds over every system, medians at the end.

Asked with {"backends": [...], "rounds": N, "peers": bool, "missing": {backend: why}}, it tells the
versions, progress, and a row for each system.
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

from loadtest.bench.locks import floors, ours, peers
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
from loadtest.bench.locks.systems import SYSTEMS, System
from loadtest.bench.services import requests_of
from loadtest.load.director import versions
from loadtest.load.events import say
from loadtest.load.process_pool import PoolFailed, ProcessPool
from loadtest.load.verdict import percentile
from locking import locks

__all__ = ["floors", "main", "ours", "peers"]  # importing them registers what they measure

HAMMER_SECONDS = 1.5
WAVES = 5
_serial = count(1)


def main(asked: dict[str, Any]) -> None:
    """Measure what is asked for."""
    call_command("migrate", verbosity=0, interactive=False)
    say("versions", versions=versions())
    chosen = [alias for alias in asked["backends"] if alias not in asked["missing"]]
    families = {ours.BACKENDS[alias][0] for alias in chosen}
    systems = [
        system
        for system in SYSTEMS
        if system.family in families
        and (system.role != "ours" or system.name in chosen)
        and (system.role != "peer" or asked["peers"])
    ]
    rows = {system.name: _Row(system) for system in systems}
    steps = asked["rounds"] + 1
    for step in range(1, steps + 1):
        for family in sorted(families):
            if step < steps:
                say("progress", step=step, of=steps, system=f"{family}, uncontended")
                _rates([row for row in rows.values() if row.system.family == family])
        for row in rows.values():
            say("progress", step=step, of=steps, system=row.system.name)
            row.take(_round if step < steps else _once)
    for row in rows.values():
        say("row", row=row.summary())


def _rates(rows: "list[_Row]") -> None:
    """A round of all systems of a family, in slices of one process."""
    able = {row.system.name: row for row in rows if not row.why}
    _close_all()
    found = uncontended([row.system for row in able.values()], _name())
    for name, slices in found.items():
        for rate, cpu in slices:
            able[name].note(pairs_per_second=rate, pair_cpu_us=cpu * 1e6)


def _close_all() -> None:
    """The crews fork: they must not inherit what two of them could talk through."""
    connections.close_all()
    locks.close()


class _Row:
    """What is known of one system."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.seen: dict[str, list[float]] = {}
        self.hand_offs: list[float] = []
        self.why = "" if system.is_installed else f"{system.needs} is not installed"

    def take(self, step: "Callable[[_Row], None]") -> None:
        """Measure; a lock that cannot keep up is left out from then on, and says why."""
        if self.why:
            return
        _close_all()
        try:
            step(self)
        except PoolFailed as failed:
            self.why = str(failed).strip().splitlines()[-1]

    def note(self, **values: float) -> None:
        """One more sample of each."""
        for name, value in values.items():
            self.seen.setdefault(name, []).append(value)

    def summary(self) -> dict[str, Any]:
        """Medians of the rounds; but the worst wait is the worst of all."""
        system = self.system
        row: dict[str, Any] = {"system": system.name, "family": system.family, "role": system.role}
        row |= {name: round(median(values), 4) for name, values in self.seen.items()}
        if "worst_wait_ms" in self.seen:
            row["worst_wait_ms"] = round(max(self.seen["worst_wait_ms"]), 1)
            for share in (50, 99):
                row[f"hand_off_ms_p{share}"] = round(
                    percentile(self.hand_offs, share / 100) * 1000, 3
                )
        return row | {"why": self.why}


def _name() -> str:
    return f"bench-{next(_serial)}"


def _round(row: _Row) -> None:
    system = row.system
    if not system.waits:
        return
    row.note(wave_ms=median(waves(system, _name(), WAVES)) * 1000)
    crowd = hammer(system, _name(), HAMMER_SECONDS, requests_of(system.family))
    row.hand_offs += crowd.hand_offs
    row.note(
        worst_wait_ms=crowd.worst_wait * 1000,
        jain=crowd.jain,
        commands=crowd.requests.commands / crowd.grants,
        round_trips=crowd.requests.reads / crowd.grants,
        contended_cpu_us=crowd.cpu / crowd.grants * 1e6,
    )


def _once(row: _Row) -> None:
    """What takes long and varies little."""
    system = row.system
    if not system.waits:
        return
    requests = requests_of(system.family)
    row.note(after_killed_s=killed_holder(system, _name()))
    row.note(waiter_requests=patient_waiter(system, _name(), requests).reads)
    if system.role == "ours" or system.family == "redis":
        few = hammer(system, _name(), HAMMER_SECONDS, requests)
        many = hammer(system, _name(), HAMMER_SECONDS, requests, threads=64 // CONTENDERS)
        per_grant = [crowd.requests.commands / crowd.grants for crowd in (few, many)]
        row.note(commands_64_to_8=per_grant[1] / per_grant[0])
    if system.name == "redlock":
        row.note(minority_down_ms=_minority_down(system) * 1000)


def _minority_down(system: System) -> float:
    """The slowest of some acquisitions in seconds, with two of the five masters stopped."""

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
    """SIGSTOP to the servers, which are ours."""
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
