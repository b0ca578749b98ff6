"""Run the faults: `main` emits the verdict, the proof and the record of each run.

The arguments are {"libraries": [...], "faults": [...], "repeats": N}. Runs that disturb no other
library run at the same time; a restart of a store, and the count of its requests, do not.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from itertools import groupby
from pathlib import Path
from typing import Any

from django.db import connections

from devservers.faults.waiting import FaultFailed
from devservers.faults.worker import emit
from loadtest.bench.survival import faults
from loadtest.bench.survival.judge import JUDGES
from loadtest.bench.survival.libraries import LIBRARIES
from loadtest.kernel.history import history
from loadtest.kernel.topology import Stores

RUNS: dict[str, tuple[Callable[[faults.Trial], str], tuple[str, ...]]] = {
    "kill": (faults.killed, ("kill",)),
    "pause": (faults.paused, ("pause", "late-release")),
    "work": (faults.worked, ("work",)),
    "lost-reply": (faults.unanswered, ("lost-reply",)),
    "restart": (faults.restarted, ("restart",)),
    "order": (faults.queued, ("order",)),
}
"""By run: the fault, and those of JUDGES that read its record."""
TOGETHER = ("kill", "pause", "work", "lost-reply")
AT_ONCE = 4
ATTEMPTS = 2


def main(asked: dict[str, Any], stores: Stores) -> None:
    """Put each library through each fault, `repeats` times."""
    folder, wanted = Path.cwd() / "survival", set(asked["faults"])
    able = []
    for name in asked["libraries"]:
        try:
            emit("library", library=name, version=LIBRARIES[name].version())
            able.append(name)
        except PackageNotFoundError:
            emit("library", library=name, why=f"{LIBRARIES[name].package} is not installed")

    def put(names: Sequence[str], runs: Sequence[str]) -> None:
        for name in names:
            chosen = [run for run in runs if wanted.intersection(RUNS[run][1])]
            with faults.Trial(stores, name, folder) as trial:
                for run in chosen:
                    for repeat in range(asked["repeats"]):
                        _once(trial, run, repeat, wanted)
        connections.close_all()

    def family(name: str) -> str:
        return LIBRARIES[name].family

    by_family = [[*names] for _, names in groupby(sorted(able, key=family), key=family)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for groups, runs in (([[one] for one in able], TOGETHER), (by_family, ("restart",))):
            list(pool.map(lambda names, runs=runs: put(names, runs), groups))
    put(able, ("order",))


def _once(trial: faults.Trial, run: str, repeat: int, wanted: set[str]) -> None:
    """Run one fault, again if it missed; emit the verdicts of its judges."""
    inject, judges = RUNS[run]
    why = proof = ""
    for _ in range(ATTEMPTS):
        trial.begin()
        try:
            proof, why = inject(trial), "the fault was not injected"
        except FaultFailed as error:
            proof, why = "", str(error)
        if proof:
            break
    for name in wanted.intersection(judges):
        about = {"library": trial.name, "fault": name, "repeat": repeat}
        if not proof:
            emit("run", **about, why=why)
            continue
        events = history(trial.folder)
        verdict = JUDGES[name](events)
        emit("run", **about, proof=proof, **verdict._asdict(), events=events, at=time.time())
