"""Run the faults: `main` emits the verdict, the proof and the record of each run.

The arguments are {"libraries": [...], "faults": [...], "repeats": N}. Runs that disturb no other
library are at the same time; a restart of a store, and a count of its requests, are not.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import count, groupby
from pathlib import Path
from typing import Any

from devservers.faults.waiting import FaultFailed
from devservers.faults.worker import emit
from loadtest.bench.survival import faults
from loadtest.bench.survival.judge import JUDGES
from loadtest.bench.survival.libraries import LIBRARIES
from loadtest.kernel.history import history
from loadtest.kernel.topology import Stores

Inject = Callable[[faults.Trial], str]
RUNS: dict[Inject, tuple[str, ...]] = {
    faults.killed: ("kill",),
    faults.paused: ("pause", "late-release"),
    faults.worked: ("work",),
    faults.unanswered: ("lost-reply",),
    faults.restarted: ("restart",),
    faults.queued: ("order",),
}
"""By fault: those of JUDGES that read its record."""
ALONE = (faults.restarted, faults.queued)
AT_ONCE = 6
ATTEMPTS = 2


def main(asked: dict[str, Any], stores: Stores) -> None:
    """Put each library through each fault, `repeats` times."""
    able, wanted = [], set(asked["faults"])
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

    def put(injects: Sequence[Inject], names: Sequence[str]) -> None:
        for name in names:
            with faults.Trial(stores, name, Path.cwd() / "survival") as trial:
                for inject in injects:
                    for _ in range(asked["repeats"]):
                        if is_over.is_set():
                            return
                        for run in _run(trial, inject, wanted.intersection(RUNS[inject])):
                            about = f"{name}: {run['fault']}"
                            emit("run", **run, system=about, step=next(steps), of=total)

    def family(name: str) -> str:
        return LIBRARIES[name].family

    together = [inject for inject in RUNS if inject not in ALONE]
    families = [[*names] for _, names in groupby(sorted(able, key=family), key=family)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            list(pool.map(partial(put, together), [[name] for name in able]))
            list(pool.map(partial(put, [faults.restarted]), families))
        except BaseException:  # a signal: the pool then waits only for the runs under way
            is_over.set()
            raise
    put([faults.queued], able)


def _run(trial: faults.Trial, inject: Inject, names: set[str]) -> Iterator[dict[str, Any]]:
    """Inject a fault, again if it missed, and yield the verdicts of its judges."""
    why = proof = ""
    for _ in range(ATTEMPTS if names else 0):
        trial.begin()
        try:
            proof, why = inject(trial), "the fault was not injected"
        except FaultFailed as error:
            why = str(error)
            trial.end_processes()
        if proof:
            break
    for name in names:
        found: dict[str, Any] = {"why": why}
        if proof:
            events = history(trial.folder)
            found = {"proof": proof, **JUDGES[name](events)._asdict(), "events": events}
        yield {"library": trial.name, "fault": name, **found}
