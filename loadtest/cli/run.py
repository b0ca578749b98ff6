"""Sell out a sale under one guard after another; exit 1 on an unexpected verdict."""

from argparse import ArgumentParser
from dataclasses import fields
from pathlib import Path
from typing import Any

from loadtest.charts.export import FILES, as_file
from loadtest.charts.terminal import Bar, Terminal, check_file
from loadtest.cli import JSON_HELP
from loadtest.load import report
from loadtest.load.fault_plan import FAULTS
from loadtest.load.plan import BACKENDS, STORES, Plan
from loadtest.load.run import run
from locking.models import WriteStrategy

PAGE_WIDTH = 100


def add_arguments(parser: ArgumentParser) -> None:
    """Add the fields of a Plan and the output files."""
    known = {field.name: field.default for field in fields(Plan)}
    parser.add_argument(
        "--backend",
        action="append",
        dest="backends",
        metavar="NAME",
        help=f"may be repeated; one of {', '.join(BACKENDS)} (default: none and redis)",
    )
    parser.add_argument(
        "--strategy",
        "--discipline",
        action="append",
        dest="disciplines",
        metavar="NAME",
        help=f"may be repeated; one of {', '.join(WriteStrategy.values)} (default: naive)",
    )
    for name, kind, meaning in (
        ("buyers", int, "buyers who want one unit each"),
        ("stock", int, "units on sale"),
        ("processes", int, "worker processes"),
        ("threads", int, "threads of each process"),
        ("think-ms", float, "milliseconds of a payment check between read and write"),
        ("seed", int, "seed of the order of the buyers and of their pauses"),
        ("repeats", int, "runs of every backend"),
        ("strikes", int, "number of times that the fault is injected"),
        ("patience", float, "seconds for which a buyer retries after the answer busy"),
    ):
        default = known[name.replace("-", "_")]
        parser.add_argument(
            f"--{name}", type=kind, default=default, help=f"{meaning} (default: {default})"
        )
    parser.add_argument(
        "--store",
        choices=STORES,
        help="the private database (default: sqlite, or mariadb if the plan needs it)",
    )
    parser.add_argument(
        "--fault",
        default="none",
        metavar="NAME",
        help="; ".join(f"{name}: {fault.description}" for name, fault in FAULTS.items()),
    )
    parser.add_argument(
        "--at",
        type=float,
        default=0.5,
        help="share of the stock that is sold when the fault is injected (default: .5)",
    )
    for suffix, meaning in FILES.items():
        parser.add_argument(f"--{suffix}", type=Path, metavar="FILE", help=meaning)
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def handle(terminal: Terminal, **options: Any) -> int:
    """Run the plan and print the report; return 1 if a guard broke its promise."""
    if options["store"] is None:
        is_mysql = "mysql_session" in (options["backends"] or ())
        is_mysql |= options["fault"] == "kill-database"
        options["store"] = "mariadb" if is_mysql else "sqlite"
    for suffix in FILES:  # before a run that may take minutes
        check_file(suffix, options[suffix])
    plan = Plan(
        backends=tuple(options["backends"] or ("none", "redis")),
        disciplines=tuple(options["disciplines"] or ("naive",)),
        **{
            field.name: options[field.name]
            for field in fields(Plan)
            if field.name not in ("backends", "disciplines")
        },
    )
    with Bar(disable=options["json"]) as bar:
        result = run(plan, bar.show)
    if options["json"]:
        terminal.json(result)
    else:
        console = terminal.console(PAGE_WIDTH)
        console.print(report.table(result["runs"]))
        for line in report.surprises(result["runs"]):
            console.print(line, style="bold red", soft_wrap=True)
    for suffix in FILES:
        if options[suffix]:
            options[suffix].write_bytes(as_file(result, suffix))
    return 0 if all(map(report.met, result["runs"])) else 1
