"""Run the benchmark of the locks: interleaved rounds over every system.

The arguments are {"backends": [...], "rounds": N, "peers": bool}; the events are progress and
rounds. A system that cannot be used, or fails, is skipped from then on; the last round of each has
no figures, but the reason in `why`.
"""

from itertools import count
from statistics import median
from typing import Any

from django.db import connections

from devservers.faults.worker import emit
from devservers.process_pool import PoolFailed, ProcessPool
from loadtest.bench.locks import floors, peers
from loadtest.bench.locks.measure import (
    CONTENDERS,
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
    families = {OURS[alias][0] for alias in chosen}
    systems = [
        system
        for system in SYSTEMS
        if system.family in families
        and (system.role != "ours" or system.name in chosen)
        and (system.role != "peer" or asked["peers"])
    ]
    why = {one.name: _why_not(one) for one in systems}
    steps = asked["rounds"] + 1
    for step in range(1, steps + 1):
        for family in sorted(families) if step < steps else ():
            emit("progress", step=step, of=steps, system=f"{family}, uncontended")
            able = [one for one in systems if one.family == family and not why[one.name]]
            _close_connections()
            for name, figures in uncontended(able, _name()).items():
                if "failed" in figures:
                    why[name] = "failed: {failed}".format(**figures)
                else:
                    emit("round", line=name, round=figures)
        for system in systems:
            emit("progress", step=step, of=steps, system=system.name)
            if system.waits and not why[system.name]:
                _close_connections()
                try:
                    figures = _round(system) if step < steps else _once(system)
                except PoolFailed as failed:
                    why[system.name] = failed.reason
                else:
                    emit("round", line=system.name, round=figures)
    for system in systems:
        about = {"family": system.family, "role": system.role, "why": why[system.name]}
        emit("round", line=system.name, round={}, **about)


def _close_connections() -> None:
    """Close what a forked process must not share with its parent."""
    connections.close_all()
    locks.close()


def _name() -> str:
    return f"bench-{next(_serial)}"


def _why_not(system: System) -> str:
    """Return why a free lock of this system is not granted; nothing if it is."""

    def work(number: int) -> None:
        ready(system, _name())

    _close_connections()
    try:
        with ProcessPool(work) as pool:
            pool.results()
    except PoolFailed as failed:
        return failed.reason
    return ""


def _round(system: System) -> dict[str, float]:
    """Measure what varies from round to round."""
    wave_ms = median(waves(system, _name(), WAVES)) * 1000
    requests = requests_of(system.family)
    return {"wave_ms": wave_ms, **hammer(system, _name(), HAMMER_SECONDS, requests)}


def _once(system: System) -> dict[str, float]:
    """Measure what takes long and varies little."""
    requests = requests_of(system.family)
    figures = {
        "after_killed_s": killed_holder(system, _name()),
        "waiter_requests": patient_waiter(system, _name(), requests).reads,
    }
    if system.role == "ours" or system.family == "redis":
        few = hammer(system, _name(), HAMMER_SECONDS, requests)
        many = hammer(system, _name(), HAMMER_SECONDS, requests, threads=64 // CONTENDERS)
        figures["commands_64_to_8"] = many["commands"] / few["commands"]
    return figures
