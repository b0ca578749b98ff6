"""Kill and stop beats and workers while jobs run; exit 1 unless each job ran once.

Example: manage.py lab jobs --seconds 60
"""

from argparse import ArgumentParser
from typing import Any

from loadtest.charts.terminal import Terminal
from loadtest.cli import add_numbers
from loadtest.load.plan import STORES, keep_within
from loadtest.load.stores import ExperimentFailed, PrivateStores

LIMITS = {"seconds": (5, 3600), "seed": (0, 2**63 - 1), "beats": (2, 8), "workers": (2, 8)}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the size of the experiment and its database."""
    add_numbers(
        parser,
        (
            ("seconds", 120, "how long faults are injected, in seconds"),
            ("seed", 1, "random seed for targets and times of the faults"),
            ("beats", 3, "number of Celery beats"),
            ("workers", 3, "number of Celery workers"),
        ),
    )
    parser.add_argument(
        "--store",
        choices=STORES,
        default="sqlite",
        help="database of the test (default: %(default)s)",
    )


def handle(terminal: Terminal, *, store: str, **options: Any) -> int:
    """Run the experiment on private stores; return 1 unless its verdict is ok."""
    asked = {name: options[name] for name in LIMITS}
    keep_within(LIMITS, asked)
    report: dict[str, Any] = {"settings": {"store": store, **asked}}
    with PrivateStores(store, ["redis"]) as stores, terminal.bar() as bar:
        if stores.missing:
            raise ExperimentFailed("; ".join(stores.missing.values()))
        stores.environ["CELERY_BROKER_URL"] = stores.environ["REDIS_URL"]
        for event in stores.run_experiment("jobs", asked):
            bar.show(event)
            if event["event"] == "report":
                report |= event["report"]
    terminal.show(report, _describe)
    return 0 if report["verdict"] == "ok" else 1


def _describe(terminal: Terminal, report: dict[str, Any]) -> None:
    names = {"once": "with run_once", "control": "control, without it"}
    counts = ("effects", "doubled", "missing")
    rows = [
        [name, str(report["scheduled"]), *(str(report[task][count]) for count in counts)]
        for task, name in names.items()
    ]
    terminal.table(("task", "scheduled", *counts), rows)
    faults = ", ".join(f"{what} {number}" for what, number in report["faults"].items())
    terminal.print(f"Faults injected: {faults}.")
    terminal.print(
        f"run_once skipped {report['turned_away']} duplicates, took over {report['taken_over']} "
        f"abandoned runs and rejected {report['late_refused']} late writes."
    )
    terminal.print(terminal.verdict(report["verdict"], is_expected=report["verdict"] == "ok"))
