"""Run random workloads under random faults until time is up; exit 1 if a promise was broken.

Example: manage.py verify torture --seed 1 --minutes 10 --backend redis
"""

import signal
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from devservers import ServerError
from loadtest.kernel.actors import ExperimentFailed
from loadtest.kernel.params import add_file, add_numbers, keep_within
from loadtest.kernel.terminal import Terminal
from verification.torture.campaign import COLUMNS, Campaign
from verification.torture.catalogue import STORES, WORKLOADS
from verification.torture.plan import WORK_SECONDS

LIMITS = {
    "seed": (0, 2**63 - 1),
    "minutes": (0, 10_000),
    "runs": (0, 10**9),
    "tries": (1, 100),
    "jobs": (1, 16),
    "seconds": (WORK_SECONDS, 600),
}
NUMBERS: tuple[tuple[str, float, str], ...] = (
    ("seed", 1, "seed of the first run; the next runs count up"),
    ("minutes", 1.0, "minutes after which no run begins"),
    ("runs", 0, "runs after which none begins; 0: no limit"),
    ("tries", 3, "runs of each candidate while a failing plan is reduced"),
    ("jobs", 1, "runs at the same time, each on servers of its own"),
    ("seconds", WORK_SECONDS, "seconds of work of each run that sells nothing"),
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the seed, the time and what to run."""
    add_numbers(parser, NUMBERS)
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
    campaign = Campaign(options)
    before = signal.signal(signal.SIGINT, lambda *_: campaign.stop.set())
    try:
        with ThreadPoolExecutor(options["jobs"]) as pool:
            list(pool.map(campaign.lane, range(options["jobs"])))
    except ServerError as error:
        if not campaign.rows:
            raise ExperimentFailed(str(error)) from error
        campaign.problem = str(error)
    finally:
        signal.signal(signal.SIGINT, before)
    report = campaign.report()
    terminal.show(report, _describe)
    return 1 if report["failures"] or report["problem"] or report["unreached"] else 0


def _describe(terminal: Terminal, report: dict[str, Any]) -> None:
    if report["problem"]:
        terminal.print(terminal.verdict(f"Ended early: {report['problem']}", is_expected=False))
    rows = []
    for one in report["backends"]:
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(one["faults"].items()))
        shown = one | {"faults": sum(one["faults"].values())}
        rows.append([*(str(shown[name]) for name in COLUMNS), faults])
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
            numbers = ",".join(map(str, one["only"])) or ","
            longer = plan["work_seconds"] > WORK_SECONDS
            seconds = f" --seconds {plan['work_seconds']:g}" if longer else ""
            terminal.print(
                f"  Reproduced in {one['reproduced']} runs: manage.py verify torture --seed "
                f"{plan['seed']} --backend {plan['backend']} --workload {plan['workload']} "
                f"--only {numbers}{seconds}"
            )
