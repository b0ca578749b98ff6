"""Run random workloads under random faults until time is up; exit 1 if a promise was broken.

Example: manage.py verify torture --seed 1 --minutes 10 --backend redis
"""

import signal
from argparse import ArgumentParser
from typing import Any

from devservers import ServerError
from loadtest.kernel.session import ExperimentFailed
from loadtest.kernel.terminal import Terminal
from verification.torture.campaign import COLUMNS, Campaign, TortureParams


def add_arguments(parser: ArgumentParser) -> None:
    """Add the seed, the time and what to run."""
    TortureParams.add_options(parser)


def handle(terminal: Terminal, **options: Any) -> int:
    """Run plans, reduce the first that fails for each backend, and print a table.

    SIGINT ends the runs; the report then has those that were complete.
    """
    campaign = Campaign(TortureParams.of(options))
    before = signal.signal(signal.SIGINT, lambda *_: campaign.stop.set())
    try:
        campaign.run()
    except ServerError as error:
        if not campaign.rows:
            raise ExperimentFailed(str(error)) from error
        campaign.problem = str(error)
    finally:
        signal.signal(signal.SIGINT, before)
    report = campaign.report()
    terminal.show(report, _describe)
    if report["failures"] or report["problem"] or report["unreached"]:
        return 1
    return 2 if any(row["undecided"] for row in report["backends"]) else 0


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
            terminal.print(
                f"  Reproduced in {one['reproduced']} runs: manage.py verify torture --seed "
                f"{plan['seed']} --backend {plan['backend']} --workload {plan['workload']} "
                f"--only {numbers}"
            )
