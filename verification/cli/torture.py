"""Run random workloads under random faults until time is up; exit 1 if a promise was broken.

Example: manage.py verify torture --seed 1 --minutes 10 --backend redis
"""

import itertools
import json
import signal
import sys
import threading
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from devservers import ServerError
from devservers.faults.waiting import FaultFailed
from loadtest.kernel.actors import ExperimentFailed
from loadtest.kernel.params import PlanError, add_file, add_numbers, keep_within
from loadtest.kernel.terminal import Terminal
from verification.torture.catalogue import CONTROLS, MARKS, STORES, WORKLOADS, workloads_of
from verification.torture.plan import WORK_SECONDS, Plan, generate
from verification.torture.reduce import reduce
from verification.torture.runner import Run, Torture

BACKENDS = tuple(name for name in STORES if name not in CONTROLS)
LIMITS = {
    "seed": (0, 2**63 - 1),
    "minutes": (0, 10_000),
    "runs": (0, 10**9),
    "tries": (1, 100),
    "jobs": (1, 16),
    "seconds": (WORK_SECONDS, 600),
}
RUNS_PER_BACKEND = 5
"""Runs on the servers of one backend before those of the next are started."""
MARK_RUNS = 50
"""Runs of a workload after which each of its marks must have been reached."""
COLUMNS = "backend", "runs", "grants", "faults", "undecided", "violations"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the seed, the time and what to run."""
    seed = ("seed", 1, "seed of the first run; the next runs count up")
    minutes = ("minutes", 1.0, "minutes after which no run begins")
    runs = ("runs", 0, "runs after which none begins; 0: no limit")
    tries = ("tries", 3, "runs of each candidate while a failing plan is reduced")
    jobs = ("jobs", 1, "runs at the same time, each on servers of its own")
    seconds = ("seconds", WORK_SECONDS, "seconds of work of each run that sells nothing")
    add_numbers(parser, (seed, minutes, runs, tries, jobs, seconds))
    for name, known in (("backend", tuple(STORES)), ("workload", WORKLOADS)):
        text = f"several: {', '.join(known)}"
        parser.add_argument(f"--{name}", action="append", choices=known, metavar="NAME", help=text)
    parser.add_argument("--only", metavar="I,J,K", help="run the seed with these faults only")
    add_file(parser, "replay", "run the plan of a report's failure instead of seeds")
    parser.add_argument("--each", action="store_true", help="print each run to stderr")


def handle(terminal: Terminal, **options: Any) -> int:
    """Run plans, reduce the first that fails for each backend, and print a table.

    SIGINT ends the runs; the report then has those that were complete.
    """
    keep_within(LIMITS, options)
    session = Session(plans(options), options, terminal)
    before = signal.signal(signal.SIGINT, lambda *_: session.stop.set())
    try:
        with ThreadPoolExecutor(options["jobs"]) as pool:
            list(pool.map(session.lane, range(options["jobs"])))
    except ServerError as error:
        if not session.rows:
            raise ExperimentFailed(str(error)) from error
        session.problem = str(error)
    finally:
        signal.signal(signal.SIGINT, before)
    report = session.report()
    terminal.show(report, _describe)
    return 1 if report["failures"] or report["problem"] or report["unreached"] else 0


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
    backends = [
        one
        for one in options["backend"] or BACKENDS
        if {*workloads_of(one)}.intersection(workloads)
    ]
    if not backends:
        raise PlanError("--workload: none of these backends can run it.")

    def plan_of(seed: int, backend: str) -> Plan:
        return replace(generate(seed, backend, workloads), work_seconds=options["seconds"])

    if options["only"] is not None:
        plan = plan_of(options["seed"], backends[0])
        try:
            yield plan.only([int(one) for one in options["only"].split(",") if one])
        except (ValueError, IndexError):
            raise PlanError(f"--only: give numbers below {len(plan.faults)}.") from None
        return
    seed = options["seed"]
    for turn in itertools.count():
        backend = backends[turn // RUNS_PER_BACKEND % len(backends)]
        yield plan_of(seed + turn, backend)


class Session:
    """Runs plans in lanes, each with servers and processes of its own, until time is up."""

    def __init__(self, plans: Iterator[Plan], options: dict[str, Any], terminal: Terminal) -> None:
        self._plans = itertools.islice(plans, options["runs"] or None)
        self._options, self._terminal = options, terminal
        self._started = time.monotonic()
        self.rows: dict[str, dict[str, Any]] = {}
        self._failures: list[dict[str, Any]] = []
        self.marks: dict[str, Counter[str]] = {}
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
                        if self._is_over():
                            return
                        self._run(torture, plan)
        except BaseException:
            self.stop.set()
            raise

    def _take(self) -> list[Plan]:
        with self._guard:
            return list(itertools.islice(self._plans, RUNS_PER_BACKEND))

    def _is_over(self) -> bool:
        seconds = time.monotonic() - self._started
        return self.stop.is_set() or seconds > 60 * self._options["minutes"]

    def _run(self, torture: Torture, plan: Plan) -> None:
        result = _run(torture, plan)
        if self.stop.is_set():  # SIGINT may have ended the processes, too
            return
        with self._guard:
            is_first = all(one["plan"]["backend"] != plan.backend for one in self._failures)
            self._add(result)
            if result.violations:
                self._failures.append(result.as_json())
                failure = self._failures[-1]
        if result.violations and is_first:
            failure |= self._reduced(torture, plan)

    def _reduced(self, torture: Torture, plan: Plan) -> dict[str, Any]:
        """Return the least faults with which the plan fails, and how often it does.

        Return nothing if SIGINT ends the search.
        """
        tries = self._options["tries"]

        def fails(numbers: Sequence[int]) -> int:
            smaller = plan.only(numbers)
            return sum(
                bool(_run(torture, smaller).violations)
                for _ in range(tries)
                if not self.stop.is_set()
            )

        kept = reduce(len(plan.faults), fails)
        reproduced = f"{fails(kept)} of {tries}"
        return {} if self.stop.is_set() else {"only": kept, "reproduced": reproduced}

    def _add(self, result: Run) -> None:
        plan = result.plan
        row = self.rows.setdefault(plan.backend, _row(plan.backend))
        row["runs"] += 1
        row["grants"] += result.counts.get("grants", 0)
        row["faults"] += Counter(fault.kind for fault, proof in result.proofs if proof)
        row["undecided"] += result.undecided
        row["violations"] += bool(result.violations)
        self.marks.setdefault(plan.workload, Counter()).update(result.counts, runs=1)
        if self._options["each"]:
            sys.stderr.write(f"{_line(result)}\n")

    def report(self) -> dict[str, Any]:
        """Return the results of the runs that are complete."""
        seconds, rows = round(time.monotonic() - self._started), list(self.rows.values())
        head = {"seed": self._options["seed"], "seconds": seconds, "problem": self.problem}
        return head | {
            "backends": rows,
            "failures": self._failures,
            "marks": {
                workload: {name: seen[name] for name in ("runs", *MARKS[workload])}
                for workload, seen in self.marks.items()
            },
            "unreached": [
                f"{workload}: {name}"
                for workload, seen in self.marks.items()
                for name in MARKS[workload]
                if not seen[name] and seen["runs"] >= MARK_RUNS
            ],
        }


def _row(backend: str) -> dict[str, Any]:
    return dict.fromkeys(COLUMNS, 0) | {"backend": backend, "faults": Counter()}


def _run(torture: Torture, plan: Plan) -> Run:
    try:
        return torture.run(plan)
    except FaultFailed as error:
        return Run(plan, [f"liveness: {error}"], 0, {})


def _line(result: Run) -> str:
    plan = result.plan
    faults = "; ".join(str(fault) for fault, _ in result.proofs)
    verdict = "; ".join(result.violations) or ("undecided" if result.undecided else "ok")
    counts = f"{result.counts.get('grants', 0)} grants"
    if "switches" in result.counts:
        counts += f" and {result.counts['switches']} switches"
    return f"{plan.seed} {plan.backend} {plan.workload}: {counts}; {faults}: {verdict}"


def _describe(terminal: Terminal, report: dict[str, Any]) -> None:
    if report["problem"]:
        terminal.print(terminal.verdict(f"Ended early: {report['problem']}", is_expected=False))
    rows = []
    for one in report["backends"]:
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(one["faults"].items()))
        rows.append([str(one[name]) for name in COLUMNS] + [faults])
        rows[-1][3] = str(sum(one["faults"].values()))
    terminal.table((*COLUMNS, "by kind"), rows)
    for mark in report["unreached"]:
        terminal.print(terminal.verdict(f"Never reached: {mark}", is_expected=False))
    for one in report["failures"]:
        plan = one["plan"]
        what = f"seed {plan['seed']}, {plan['backend']}, {plan['workload']}"
        terminal.print(terminal.verdict(what, is_expected=False))
        for violation in one["violations"][:5]:
            terminal.print(f"  {violation}")
        for fault in one["faults"]:
            terminal.print(f"  {fault['fault']}: {fault['proof'] or 'did not fire'}")
        if "only" in one:
            numbers = ",".join(map(str, one["only"]))
            longer = plan["work_seconds"] > WORK_SECONDS
            seconds = f" --seconds {plan['work_seconds']:g}" if longer else ""
            terminal.print(
                f"  Reproduced in {one['reproduced']} runs: manage.py verify torture --seed "
                f"{plan['seed']} --backend {plan['backend']} --workload {plan['workload']} "
                f"--only {numbers or ','}{seconds}"
            )
