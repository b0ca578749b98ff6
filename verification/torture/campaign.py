"""A campaign of torture: plan after plan until time is up, and the report on them."""

import itertools
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from devservers.faults.waiting import FaultFailed
from loadtest.kernel.params import PlanError
from verification.torture.catalogue import CONTROLS, MARKS, STORES, WORKLOADS, workloads_of
from verification.torture.plan import Plan, generate
from verification.torture.runner import Run, Torture

RUNS_PER_BACKEND = 5
"""Runs on the servers of one backend before those of the next are started."""
MARK_RUNS = 50
"""Runs of a workload after which each of its marks must have been reached."""
COLUMNS = "backend", "runs", "grants", "faults", "undecided", "violations"


def plans(options: dict[str, Any]) -> Iterator[Plan]:
    """Yield the plans of the options, without an end if they name no single plan."""
    if options["replay"]:
        try:
            found = json.loads(options["replay"].read_text())
            found = [Plan.from_json(one["plan"]) for one in found["failures"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PlanError(f"--replay: {options['replay']} is no report: {error}.") from error
        yield from found
        return
    workloads = options["workload"] or tuple(WORKLOADS)
    asked = options["backend"] or [one for one in STORES if one not in CONTROLS]
    backends = [one for one in asked if {*workloads_of(one)}.intersection(workloads)]
    if not backends:
        raise PlanError("--workload: none of these backends can run it.")
    for turn in itertools.count():
        backend = backends[turn // RUNS_PER_BACKEND % len(backends)]
        plan = generate(options["seed"] + turn, backend, workloads)
        plan = replace(plan, work_seconds=options["seconds"])
        if options["only"] is None:
            yield plan
            continue
        try:
            yield plan.only([int(one) for one in options["only"].split(",") if one])
        except (ValueError, IndexError):
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
    """Runs plans in lanes, each with servers and processes of its own, until time is up."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._plans = itertools.islice(plans(options), options["runs"] or None)
        self._options, self._started = options, time.monotonic()
        self.rows: dict[str, dict[str, Any]] = {}
        self._failures: list[dict[str, Any]] = []
        self._marks: dict[str, Counter[str]] = {}
        """By workload: its runs, and what was counted in them."""
        self._guard = threading.Lock()
        self.stop = threading.Event()
        self.problem = ""
        """Why servers did not start, which ends the runs."""

    def lane(self, _number: int) -> None:
        """Take plans, those of one backend together, and run them."""
        try:
            with Torture() as torture:
                while taken := self._take():
                    for plan in taken:
                        seconds = time.monotonic() - self._started
                        if self.stop.is_set() or seconds > 60 * self._options["minutes"]:
                            return
                        self._run(torture, plan)
        except BaseException:
            self.stop.set()
            raise

    def _take(self) -> list[Plan]:
        with self._guard:
            return list(itertools.islice(self._plans, RUNS_PER_BACKEND))

    def _run(self, torture: Torture, plan: Plan) -> None:
        result = _judged(torture, plan)
        if self.stop.is_set():  # SIGINT may have ended the processes, too
            return
        with self._guard:
            is_first = all(one["plan"]["backend"] != plan.backend for one in self._failures)
            self._add(result)
            if not result.violations:
                return
            failure = result.as_json()
            self._failures.append(failure)
        if is_first:
            failure |= self._reduced(torture, plan)

    def _reduced(self, torture: Torture, plan: Plan) -> dict[str, Any]:
        """Return the least faults with which the plan fails, and how often it does.

        Return nothing if SIGINT ends the search.
        """
        tries = self._options["tries"]

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
        if self._options["each"]:
            sys.stderr.write(f"{result}\n")

    def report(self) -> dict[str, Any]:
        """Return the results of the runs that are complete."""
        return {
            "seed": self._options["seed"],
            "seconds": round(time.monotonic() - self._started),
            "problem": self.problem,
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
            ],
        }


def _judged(torture: Torture, plan: Plan) -> Run:
    try:
        return torture.run(plan)
    except FaultFailed as error:
        return Run(plan, [f"liveness: {error}"])
