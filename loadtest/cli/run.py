"""Sell out a sale with each of several locks; exit 1 if a verdict is not as expected.

Example: manage.py lab run --backend none --backend redis --buyers 200 --stock 50
"""

from argparse import ArgumentParser
from dataclasses import fields
from typing import Any

from inventory.models import WriteStrategy
from loadtest.charts.export import FILES, as_file
from loadtest.charts.terminal import Terminal, check_file
from loadtest.cli import add_file, add_numbers
from loadtest.kernel.faults import FAULTS
from loadtest.load import report
from loadtest.load.plan import BACKENDS, NEEDS, STORES, Plan
from loadtest.load.run import Report, run

COLUMNS = ("lock", "sold", "orders/s", "wait, ms\np50/p95/p99", "verdict")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the fields of a Plan and the output files."""
    known: dict[str, Any] = {field.name: field.default for field in fields(Plan)}
    parser.add_argument(
        "--backend",
        action="append",
        dest="backends",
        metavar="NAME",
        help=f"lock backend, may be repeated: {', '.join(BACKENDS)} (default: none and redis)",
    )
    parser.add_argument(
        "--strategy",
        "--discipline",
        action="append",
        dest="disciplines",
        metavar="NAME",
        help=f"how stock is written, may be repeated: {', '.join(WriteStrategy.values)} "
        "(default: naive)",
    )
    meanings = {
        "buyers": "number of buyers, each wants one unit",
        "stock": "units on sale",
        "processes": "worker processes",
        "threads": "threads per process",
        "think-ms": "payment check between read and write, in milliseconds",
        "seed": "random seed for the order of the buyers and their pauses",
        "repeats": "runs per backend",
        "strikes": "how many times the fault is injected",
        "patience": "how long a buyer retries while the shop is busy, in seconds",
        "at": "share of the stock that is sold before the fault is injected",
    }
    add_numbers(
        parser, [(name, known[name.replace("-", "_")], text) for name, text in meanings.items()]
    )
    parser.add_argument(
        "--store",
        choices=STORES,
        help="database of the test (default: sqlite, or the one that is required)",
    )
    parser.add_argument(
        "--fault",
        default="none",
        metavar="NAME",
        help="; ".join(f"{name}: {fault.description}" for name, fault in FAULTS.items()),
    )
    for suffix, meaning in FILES.items():
        add_file(parser, suffix, meaning)


def handle(terminal: Terminal, **options: Any) -> int:
    """Run the plan and print the report; return 1 if a guard broke its promise."""
    if options["store"] is None:
        needed = [NEEDS[one] for one in options["backends"] or () if one in NEEDS]
        is_server = options["fault"] == "kill-database"
        options["store"] = next(iter(needed), "mariadb" if is_server else "sqlite")
    for suffix in FILES:  # before a run that may take minutes
        check_file(suffix, options[suffix])
    options["backends"] = tuple(options["backends"] or ("none", "redis"))
    options["disciplines"] = tuple(options["disciplines"] or ("naive",))
    plan = Plan(**{field.name: options[field.name] for field in fields(Plan)})
    with terminal.bar() as bar:
        result = run(plan, bar.show)
    terminal.show(result, _describe)
    for suffix in FILES:
        if options[suffix]:
            options[suffix].write_bytes(as_file(result, suffix))
    return 0 if all(map(report.met, result["runs"])) else 1


def _describe(terminal: Terminal, result: Report) -> None:
    terminal.print(report.sentence(result["runs"]))
    for one in report.with_lost_updates(result["runs"]):
        terminal.print(f"{one['backend']} + {one['discipline']}: {report.explain(one)}")
    terminal.print()
    terminal.table(COLUMNS, [_cells(run, terminal) for run in result["runs"]])
    for line in report.surprises(result["runs"]):
        terminal.print(terminal.verdict(line, is_expected=False))


def _cells(run: dict[str, Any], terminal: Terminal) -> tuple[str, ...]:
    return (
        f"{run['backend']} + {run['discipline']}",
        f"{run['sold']}/{run['stock']}",
        f"{run['orders_per_second']:.0f}",
        "/".join(f"{wait:.0f}" for wait in run["wait_ms"].values()),
        terminal.verdict(report.words(run), is_expected=report.met(run)),
    )
