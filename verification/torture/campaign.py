"""A campaign of torture: plan after plan until time is up, and the report on them."""

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from devservers.faults.waiting import FaultFailed
from loadtest.kernel.params import Params, PlanError, param
from verification.torture.catalogue import CONTROLS, MARKS, STORES, WORKLOADS, workloads_of
from verification.torture.plan import Plan, generate
from verification.torture.runner import Run, Torture

RUNS_PER_BACKEND = 5
"""Runs on the servers of one backend before those of the next are started."""
MARK_RUNS = 50
"""Runs of a workload after which each of its marks must have been reached."""
COLUMNS = "backend", "runs", "grants", "faults", "undecided", "violations"
TORTURED = tuple(one for one in STORES if one not in CONTROLS)


@dataclass(frozen=True, kw_only=True)
class TortureParams(Params):
    """The plans of a campaign, and its end."""

    seed: int = param(1, "seed of the first run; the next runs count up", limits=(0, 2**63 - 1))
    minutes: float = param(1.0, "minutes after which no run begins", limits=(0, 10_000))
    runs: int = param(0, "runs after which none begins; 0: no limit", limits=(0, 10**9))
    tries: int = param(3, "runs of each candidate while a failing plan is reduced", limits=(1, 100))
    backends: tuple[str, ...] = param(
        TORTURED, "lock backend", choices=tuple(STORES), option="backend", default_text="no control"
    )
    workloads: tuple[str, ...] = param(
        tuple(WORKLOADS), "workload", choices=tuple(WORKLOADS), option="workload"
    )
    only: str | None = param(None, "run the seed with these faults only, such as 0,2")
    each: bool = param(False, "print each run to stderr", const=True)


def plans(asked: TortureParams) -> Iterator[Plan]:
    """Yield a plan for each seed from the first on, or only the first with some of its faults."""
    backends = [one for one in asked.backends if {*workloads_of(one)}.intersection(asked.workloads)]
    if not backends:
        raise PlanError("--workload: none of these backends can run it.")
    for turn in itertools.count():
        backend = backends[turn // RUNS_PER_BACKEND % len(backends)]
        plan = generate(asked.seed + turn, backend, asked.workloads)
        if asked.only is None:
            yield plan
            continue
        known = {str(number): number for number in range(len(plan.faults))}
        try:
            yield plan.only([known[one] for one in asked.only.split(",") if one])
        except KeyError:
            raise PlanError(f"--only: give numbers below {len(plan.faults)}.") from None
        return


def reduce(count: int, fails: Callable[[Sequence[int]], int]) -> list[int]:
    """Return the numbers of the faults with which a plan still fails; none can be left out.

    A race may pass although its cause is there, so `fails` should run each candidate several times.
    """
    kept = list(range(count))
    if fails([]):
        return []
    for one in range(count):
        fewer = [other for other in kept if other != one]
        if fewer and fails(fewer):
            kept = fewer
    return kept


class Campaign:
    """Runs plan after plan until time is up."""

    def __init__(self, asked: TortureParams) -> None:
        self._plans = itertools.islice(plans(asked), asked.runs or None)
        self._asked, self._started = asked, time.monotonic()
        self.rows: dict[str, dict[str, Any]] = {}
        self._failures: list[dict[str, Any]] = []
        self._marks: dict[str, Counter[str]] = {}
        """By workload: its runs, and what was counted in them."""
        self.stop = threading.Event()
        self.problem = ""
        """Why servers did not start, which ends the runs."""

    def run(self) -> None:
        """Run the plans until one cannot start its servers, which raises ServerError."""
        with Torture() as torture:
            for plan in self._plans:
                seconds = time.monotonic() - self._started
                if self.stop.is_set() or seconds > 60 * self._asked.minutes:
                    return
                self._run(torture, plan)

    def _run(self, torture: Torture, plan: Plan) -> None:
        result = _judged(torture, plan)
        if self.stop.is_set():  # SIGINT may have ended the processes, too
            return
        is_first = all(one["plan"]["backend"] != plan.backend for one in self._failures)
        self._add(result)
        if result.violations:
            failure = result.as_json()
            self._failures.append(failure)
            if is_first:
                failure |= self._reduced(torture, plan)

    def _reduced(self, torture: Torture, plan: Plan) -> dict[str, Any]:
        """Return the least faults with which the plan fails, and how often it does.

        Return nothing if SIGINT ends the search.
        """
        tries = self._asked.tries

        def fails(numbers: Sequence[int]) -> int:
            smaller = plan.only(numbers)
            runs = (_judged(torture, smaller) for _ in range(tries) if not self.stop.is_set())
            return sum(bool(run.violations) for run in runs)

        kept = reduce(len(plan.faults), fails)
        reproduced = f"{fails(kept)} of {tries}"
        return {} if self.stop.is_set() else {"only": kept, "reproduced": reproduced}

    def _add(self, result: Run) -> None:
        plan, counts = result.plan, result.counts
        empty = dict.fromkeys(COLUMNS, 0) | {"backend": plan.backend, "faults": Counter()}
        row = self.rows.setdefault(plan.backend, empty)
        row["runs"] += 1
        row["grants"] += counts.get("grants", 0)
        row["faults"] += Counter(fault.kind for fault, proof in result.proofs if proof)
        row["undecided"] += result.undecided
        row["violations"] += bool(result.violations)
        self._marks.setdefault(plan.workload, Counter()).update(counts, runs=1)
        if self._asked.each:
            sys.stderr.write(f"{result}\n")

    def report(self) -> dict[str, Any]:
        """Return the results of the runs that are complete."""
        return {
            "seed": self._asked.seed,
            "seconds": round(time.monotonic() - self._started),
            "problem": self.problem or ("" if self.rows else "no run was completed"),
            "backends": list(self.rows.values()),
            "failures": self._failures,
            "marks": {
                workload: {name: seen[name] for name in ("runs", *MARKS[workload])}
                for workload, seen in self._marks.items()
            },
            "unreached": [
                f"{workload}: {name}"
                for workload, seen in self._marks.items()
                for name in MARKS[workload]
                if not seen[name] and seen["runs"] >= MARK_RUNS
            ]
            + [
                f"{one['backend']}: faults"
                for one in self.rows.values()
                if not one["faults"] and one["runs"] >= MARK_RUNS
            ],
        }


def _judged(torture: Torture, plan: Plan) -> Run:
    try:
        return torture.run(plan)
    except FaultFailed as error:
        return Run(plan, [f"liveness: {error}"])
