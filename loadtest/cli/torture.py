"""Run random workloads under random faults until time is up; exit 1 if a promise was broken.

Example: manage.py lab torture --seed 1 --minutes 10 --backend redis
"""

import itertools
import json
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from devservers import ServerError
from devservers.faults.waiting import FaultFailed
from loadtest.charts.terminal import Terminal
from loadtest.cli import add_file, add_numbers
from loadtest.load.plan import PlanError, keep_within
from loadtest.load.stores import ExperimentFailed
from loadtest.torture.faults import counted
from loadtest.torture.plan import STORES, WORKLOADS, Plan, generate
from loadtest.torture.reduce import reduce
from loadtest.torture.runner import Run, Torture

BACKENDS = tuple(name for name in STORES if name != "none")
LIMITS = {"seed": (0, 2**63 - 1), "minutes": (0, 10_000), "runs": (0, 10**9), "tries": (1, 100)}
RUNS_PER_BACKEND = 5
"""Runs on the servers of one backend before those of the next are started."""
COLUMNS = "backend", "runs", "grants", "faults", "undecided", "violations"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the seed, the time and what to run."""
    seed = ("seed", 1, "seed of the first run; the next runs count up")
    minutes = ("minutes", 1.0, "minutes after which no run begins")
    runs = ("runs", 0, "runs after which none begins; 0: no limit")
    tries = ("tries", 3, "runs of each candidate while a failing plan is reduced")
    add_numbers(parser, (seed, minutes, runs, tries))
    for name, known in (("backend", tuple(STORES)), ("workload", WORKLOADS)):
        text = f"several: {', '.join(known)}"
        parser.add_argument(f"--{name}", action="append", choices=known, metavar="NAME", help=text)
    parser.add_argument("--only", metavar="I,J,K", help="run the seed with these faults only")
    add_file(parser, "replay", "run the plan of a report's failure instead of seeds")
    parser.add_argument("--each", action="store_true", help="print a line for each run")


def handle(terminal: Terminal, **options: Any) -> int:
    """Run plans, reduce the first that fails for each backend, and print a table."""
    keep_within(LIMITS, options)
    with Torture() as torture:
        try:
            report = run(torture, plans(options), options, terminal)
        except ServerError as error:
            raise ExperimentFailed(str(error)) from error
    terminal.show(report, _describe)
    return 1 if report["failures"] else 0


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
    backends, workloads = options["backend"] or BACKENDS, options["workload"] or ()
    if options["only"] is not None:
        plan = generate(options["seed"], backends[0], workloads)
        try:
            yield plan.only([int(one) for one in options["only"].split(",") if one])
        except (ValueError, IndexError):
            raise PlanError(f"--only: give numbers below {len(plan.faults)}.") from None
        return
    seed = options["seed"]
    for turn in itertools.count():
        backend = backends[turn // RUNS_PER_BACKEND % len(backends)]
        yield generate(seed + turn, backend, workloads)


def run(
    torture: Torture, plans: Iterator[Plan], options: dict[str, Any], terminal: Terminal
) -> dict[str, Any]:
    """Run the plans, and return the report."""
    end, rows = time.monotonic() + 60 * options["minutes"], dict[str, dict[str, Any]]()
    failures: list[dict[str, Any]] = []
    for done, plan in enumerate(plans):
        if time.monotonic() > end or done == options["runs"] > 0:
            break
        result = _run(torture, plan)
        row = rows.setdefault(plan.backend, _row(plan.backend))
        row["runs"] += 1
        row["grants"] += result.counts.get("grants", 0)
        row["faults"] += Counter(counted(result.proofs))
        row["undecided"] += result.undecided
        row["violations"] += bool(result.violations)
        if options["each"] and not terminal.as_json:
            terminal.print(_line(result))
        if result.violations:
            found = result.as_json()
            if all(one["plan"]["backend"] != plan.backend for one in failures):
                found |= _reduced(torture, plan, options["tries"])
            failures.append(found)
    return {"seed": options["seed"], "backends": list(rows.values()), "failures": failures}


def _row(backend: str) -> dict[str, Any]:
    return dict.fromkeys(COLUMNS, 0) | {"backend": backend, "faults": Counter()}


def _run(torture: Torture, plan: Plan) -> Run:
    try:
        return torture.run(plan)
    except FaultFailed as error:
        return Run(plan, [f"liveness: {error}"], 0, {})


def _reduced(torture: Torture, plan: Plan, tries: int) -> dict[str, Any]:
    """Return the least faults with which the plan fails, and how often it does."""

    def fails(numbers: Sequence[int]) -> int:
        smaller = plan.only(numbers)
        return sum(bool(_run(torture, smaller).violations) for _ in range(tries))

    kept = reduce(len(plan.faults), fails)
    return {"only": kept, "reproduced": f"{fails(kept)} of {tries}"}


def _line(result: Run) -> str:
    plan = result.plan
    faults = "; ".join(str(fault) for fault, _ in result.proofs)
    verdict = "; ".join(result.violations) or ("undecided" if result.undecided else "ok")
    grants = result.counts.get("grants", 0)
    return f"{plan.seed} {plan.backend} {plan.workload}: {grants} grants; {faults}: {verdict}"


def _describe(terminal: Terminal, report: dict[str, Any]) -> None:
    rows = []
    for one in report["backends"]:
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(one["faults"].items()))
        rows.append([str(one[name]) for name in COLUMNS] + [faults])
        rows[-1][3] = str(sum(one["faults"].values()))
    terminal.table((*COLUMNS, "by kind"), rows)
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
            terminal.print(
                f"  Reproduced in {one['reproduced']} runs: manage.py lab torture --seed "
                f"{plan['seed']} --backend {plan['backend']} --workload {plan['workload']} "
                f"--only {numbers or ','}"
            )
