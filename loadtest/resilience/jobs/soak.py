"""Run scheduled jobs on machines that are killed and stopped, then count their effects.

The arguments are {"seconds", "seed", "beats", "workers"}.
"""

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from django.core.management import call_command
from django.db.models import Sum

from devservers import start_all, stop_all
from devservers.faults.worker import emit
from loadtest.resilience.jobs import EVERY, TTL
from loadtest.resilience.jobs.machines import Machine, create_effects, effects
from locking.models import JobRun

SETTLE_SECONDS = 90.0
STARTING_SECONDS = 5.0
"""Seconds by which a beat may be late after its start."""


class Chaos:
    """Inject a fault about every second, never into the last machine of its kind that is up."""

    def __init__(self, machines: list[Machine], seed: int) -> None:
        self.machines = machines
        self.random = Random(seed)
        self.injected: Counter[str] = Counter()
        self._later: list[tuple[float, Callable[[], object]]] = []
        self._next = 0.0

    def step(self, now: float) -> None:
        """Inject and end the faults that are due."""
        for when, act in list(self._later):
            if when <= now:
                self._later.remove((when, act))
                act()
        if now >= self._next and self._inject(now):
            self._next = now + self.random.uniform(0.5, 2)

    def _inject(self, now: float) -> bool:
        kind = self.random.choice(["beat", "worker", "worker"])
        machine = self.random.choice([each for each in self.machines if each.kind == kind])
        fault = self.random.choice(["killed", "stopped", "child killed"])
        others = [m for m in self.machines if m is not machine and m.kind == machine.kind]
        if not machine.is_up or not any(other.is_up for other in others):
            return False
        if fault == "child killed":
            if machine.kind != "worker" or not machine.kill_child():
                return False
        elif fault == "killed":
            machine.kill()
            self._later.append((now + self.random.uniform(0.1, 2), machine.launch))
        else:
            machine.pause()
            self._later.append((now + self.random.uniform(1.5, 3) * TTL, machine.resume))
        self.injected[f"{machine.kind} {fault}"] += 1
        return True

    def recover(self) -> None:
        """End all faults."""
        for _, act in self._later:
            act()
        self._later.clear()


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """Create the tables and machines, and return the report."""
    call_command("migrate", verbosity=0, interactive=False)
    create_effects()
    machines = [Machine("beat") for _ in range(asked["beats"])]
    machines += [Machine("worker") for _ in range(asked["workers"])]
    return soak(machines, seconds=asked["seconds"], seed=asked["seed"])


def soak(machines: list[Machine], *, seconds: float, seed: int) -> dict[str, Any]:
    """Run the machines under faults for `seconds`, stop them, and return the report."""
    try:
        start_all(machines)
        first = time.time() + STARTING_SECONDS
        chaos = Chaos(machines, seed)
        ends = first + seconds
        while (now := time.time()) < ends:
            if now >= first:
                chaos.step(now)
                emit("progress", system="under faults", step=int(now - first) + 1, of=seconds)
            time.sleep(0.1)
        chaos.recover()
        scheduled = _scheduled(first, ends)
        deadline = time.time() + SETTLE_SECONDS
        while not _settled(scheduled) and time.time() < deadline:
            time.sleep(0.2)
        for machine in machines:
            machine.request_stop()
        for machine in machines:
            machine.terminate()
        logs = "".join(machine.log.read_text(errors="replace") for machine in machines)
    finally:
        stop_all(machines)
    return _report(scheduled, chaos.injected, logs)


def _scheduled(first: float, ends: float) -> list[str]:
    """Return the scheduled times while at least one beat and one worker were up."""
    numbers = range(int(first // EVERY) + 1, int(ends // EVERY) + 1)
    return [datetime.fromtimestamp(number * EVERY, UTC).isoformat() for number in numbers]


def _settled(scheduled: list[str]) -> bool:
    done = JobRun.objects.filter(task="once", state=JobRun.State.DONE)
    last = datetime.fromisoformat(scheduled[-1]) + timedelta(microseconds=1)
    since = datetime.fromisoformat(scheduled[0])
    return done.filter(scheduled_for__range=(since, last)).count() >= len(scheduled)


def _report(scheduled: list[str], injected: Counter[str], logs: str) -> dict[str, Any]:
    runs = JobRun.objects.filter(task="once")
    report: dict[str, Any] = {"scheduled": len(scheduled), "faults": dict(sorted(injected.items()))}
    for task in ("once", "control"):
        had = effects(task)
        report[task] = {
            "effects": had.total(),
            "missing": sum(not had[moment] for moment in scheduled),
            "doubled": sum(number > 1 for number in had.values()),
        }
    report["turned_away"] = runs.aggregate(sum=Sum("duplicates"))["sum"]
    report["taken_over"] = runs.filter(attempts__gt=1).count()
    report["late_refused"] = logs.count("was taken over")
    report["verdict"] = _verdict(report)
    return report


def _verdict(report: dict[str, Any]) -> str:
    if not (report["faults"] and report["taken_over"] and report["control"]["doubled"]):
        return "not-run"  # no fault was injected, or the control shows no need for run_once
    for wrong in ("doubled", "missing"):
        if report["once"][wrong]:
            return wrong
    return "ok"
