"""Run jobs on beats and workers that are killed and stopped; exit 1 unless each ran once."""

from argparse import ArgumentParser
from typing import Any

from rich.table import Table

from loadtest.charts.terminal import Bar, Terminal
from loadtest.cli import JSON_HELP, add_numbers
from loadtest.load.plan import STORES, keep_within
from loadtest.load.stores import ExperimentFailed, PrivateStores

LIMITS = {"seconds": (5, 3600), "seed": (0, 2**63 - 1), "beats": (2, 8), "workers": (2, 8)}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the size of the experiment and its database."""
    add_numbers(
        parser,
        (
            ("seconds", 120, "duration of the faults"),
            ("seed", 1, "seed of the targets and times of the faults"),
            ("beats", 3, "Celery beats"),
            ("workers", 3, "Celery workers"),
        ),
    )
    parser.add_argument("--store", choices=STORES, default="sqlite", help="the private database")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def handle(terminal: Terminal, *, store: str, json: bool, **options: Any) -> int:
    """Run the experiment on private stores; return 1 unless its verdict is ok."""
    asked = {name: options[name] for name in LIMITS}
    keep_within(LIMITS, asked)
    report: dict[str, Any] = {"settings": {"store": store, **asked}}
    with PrivateStores(store, ["redis"]) as stores, Bar(disable=json) as bar:
        if stores.missing:
            raise ExperimentFailed("; ".join(stores.missing.values()))
        stores.environ["CELERY_BROKER_URL"] = stores.environ["REDIS_URL"]
        for event in stores.run_experiment("jobs", asked):
            bar.show_step(event)
            if event["event"] == "report":
                report |= event["report"]
    if json:
        terminal.json(report)
    else:
        terminal.console(100).print(_table(report))
    return 0 if report["verdict"] == "ok" else 1


def _table(report: dict[str, Any]) -> Table:
    table = Table("task", "scheduled", "effects", "doubled", "missing", title=report["verdict"])
    for task, name in (("once", "run_once"), ("control", "control, without it")):
        had = report[task]
        numbers = (report["scheduled"], had["effects"], had["doubled"], had["missing"])
        table.add_row(name, *map(str, numbers))
    faults = ", ".join(f"{what} {number}" for what, number in report["faults"].items())
    table.caption = (
        f"faults: {faults}; run_once refused {report['turned_away']} duplicates, took over "
        f"{report['taken_over']} runs and refused {report['late_refused']} late machines"
    )
    return table
