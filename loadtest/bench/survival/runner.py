"""Run the faults: `main` emits the verdict, the proof and the record of each run.

The arguments are {"libraries": [...], "faults": [...], "repeats": N}. Runs that disturb no other
library are at the same time; a restart of a store, and a count of its requests, are not.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import count, groupby
from pathlib import Path
from typing import Any, NamedTuple

from devservers import ServerError
from devservers.faults.waiting import FaultFailed
from devservers.faults.worker import emit
from loadtest.bench.survival import faults, judge
from loadtest.bench.survival.libraries import LIBRARIES
from loadtest.kernel.history import history
from loadtest.kernel.topology import Stores

Inject = Callable[[faults.Trial], str]


class Case(NamedTuple):
    """A column of the table: a fault, and the judge of its record."""

    heading: str
    inject: Inject
    judge: Callable[[judge.Events], judge.Verdict]
    control_fails: bool = True
    """The command fails if the control survives it."""


CASES = {
    "kill": Case("holder killed: next", faults.killed, judge.next_after_kill, False),
    "pause": Case("holder paused: its late write", faults.paused, judge.pause),
    "work": Case("work of two leases", faults.worked, judge.long_work),
    "late-release": Case("late release: successor", faults.paused, judge.late_release),
    "restart": Case("store restarts", faults.restarted, judge.after_restart),
    "order": Case("64 waiters", faults.queued, judge.order),
    "lost-reply": Case("reply to acquire lost", faults.unanswered, judge.lost_reply, False),
    "lost-release": Case("reply to release lost", faults.unreleased, judge.lost_release),
    "clock": Case("store's clock: +1 h", faults.jumped, judge.after_restart),
    "session": Case("holder cut off", faults.disconnected, judge.after_cut, False),
    "commit": Case("released before COMMIT: next", faults.uncommitted, judge.before_commit),
    "cancel": Case("task cancelled: next", faults.cancelled, judge.after_cancel),
}
ALONE = (faults.restarted, faults.jumped)
"""The faults that disturb the other libraries of the store."""
_injects = (case.inject for case in CASES.values())
TOGETHER = [one for one in dict.fromkeys(_injects) if one not in (*ALONE, faults.queued)]
AT_ONCE = 6
ATTEMPTS = 2


def main(asked: dict[str, Any], stores: Stores) -> None:
    """Put each library through each fault, `repeats` times."""
    able, wanted = [], asked["faults"]
    for name in asked["libraries"]:
        package, why, found = LIBRARIES[name].package, "", ""
        try:
            found = version(package) if package else ""
            able.append(name)
        except PackageNotFoundError:
            why = f"{package} is not installed"
        emit("library", library=name, version=found, why=why)

    is_over = threading.Event()
    steps, total = count(1), len(able) * len(wanted) * asked["repeats"]

    def put(injects: Iterable[Inject], names: Sequence[str]) -> None:
        for name in names:
            with faults.Trial(stores, name, Path.cwd() / "survival") as trial:
                for inject in injects:
                    cases = [one for one in wanted if CASES[one].inject is inject]
                    for _ in range(asked["repeats"]):
                        if is_over.is_set():
                            return
                        for run in _run(trial, inject, cases):
                            about = f"{name}: {run['fault']}"
                            emit("run", **run, system=about, step=next(steps), of=total)

    def family(name: str) -> str:
        return LIBRARIES[name].family

    families = [[*names] for _, names in groupby(sorted(able, key=family), key=family)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            list(pool.map(partial(put, TOGETHER), [[name] for name in able]))
            list(pool.map(partial(put, ALONE), families))
        except BaseException:  # a signal: the pool then waits only for the runs under way
            is_over.set()
            raise
    put([faults.queued], able)


def _run(trial: faults.Trial, inject: Inject, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Inject a fault, again if it missed, and yield the verdicts of its judges."""
    why = proof = ""
    for _ in range(ATTEMPTS if names else 0):
        trial.begin()
        try:
            proof, why = inject(trial), "the fault was not injected"
        except (FaultFailed, ServerError) as error:
            why = str(error)
            trial.end_processes()
        if proof:
            break
    for name in names:
        found: dict[str, Any] = {"why": why}
        if proof:
            events = history(trial.folder)
            found = {"proof": proof, **CASES[name].judge(events)._asdict(), "events": events}
        yield {"library": trial.name, "fault": name, **found}
