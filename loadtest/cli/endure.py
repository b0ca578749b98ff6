"""Test a whole shop: restarts under load, failed and slow stores.

Example: manage.py lab endure recovery --rounds 1
"""

import json
import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from loadtest.charts import marked
from loadtest.charts.terminal import Terminal, check_file
from loadtest.cli import add_file, add_numbers
from loadtest.kernel.actors import ExperimentFailed, perform
from loadtest.kernel.topology import Topology
from loadtest.load.plan import keep_within

EXPERIMENTS = ("restarts", "recovery", "slow")
LIMITS = {
    "attempts": (100, 1_000_000),
    "stock": (10, 100_000),
    "rounds": (1, 1000),
}
HEADINGS = {
    "do": "fault",
    "blows": "other faults",
    "ok": "as required",
    "lease_held": "lease held (s)",
}
"""Titles of the report's tables and columns, where its names are short."""
PROXIED = {"slow": ("database", "redis"), "recovery": ("redis",)}
"""The stores that an experiment reaches through a proxy."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the experiment and its size."""
    parser.add_argument(
        "what",
        choices=EXPERIMENTS,
        metavar="EXPERIMENT",
        help="restarts: each process restarts under load; recovery: Redis and ZooKeeper fail and "
        "return; slow: a store responds late or not at all",
    )
    add_numbers(
        parser,
        (
            ("attempts", 100_000, "restarts: number of purchases to send"),
            ("stock", 1000, "restarts: units on sale"),
            ("rounds", 3, "recovery: how many times each fault is injected"),
        ),
    )
    meaning = "also write the report between FILE's markers lab_endure_<experiment>"
    add_file(parser, "write", meaning)


def handle(terminal: Terminal, *, what: str, write: Path | None, **options: Any) -> int:
    """Run the experiment on private stores; return 1 unless its verdict is ok."""
    asked = {name: options[name] for name in LIMITS}
    keep_within(LIMITS, asked)
    backends = ["redis", "zookeeper"] if what == "recovery" else ["redis"]
    # No order expires, because the units sold are counted.
    return endure(terminal, what, what, asked, backends, pay_within=86_400, write=write)


def endure(
    terminal: Terminal,
    what: str,
    experiment: str,
    asked: dict[str, Any],
    backends: list[str],
    *,
    pay_within: int,
    write: Path | None,
) -> int:
    """Run an experiment on a whole shop, whose orders expire after `pay_within` seconds."""
    check_file("write", write, part := f"lab_endure_{what}")
    report: dict[str, Any] = {"settings": asked, "what": what}
    topology = Topology(
        database="mariadb",
        servers=backends,
        proxied=PROXIED.get(what, ()),
        is_durable=what == "recovery",
        is_deployed=True,
        environ={"BUY_LIMIT": "1000000/second", "PAY_WITHIN_SECONDS": str(pay_within)},
    )
    with terminal.bar() as bar:
        for event in perform(experiment, asked, topology):
            bar.show(event)
            if event["event"] == "stores" and event["missing"]:
                raise ExperimentFailed("; ".join(event["missing"].values()))
            if event["event"] == "report":
                report |= event["report"]
    if write:
        marked.write(write, part, markdown(report))
    terminal.show(report, _describe)
    return 0 if report["verdict"] == "ok" else 1


def _describe(terminal: Terminal, report: dict[str, Any]) -> None:
    report.pop("samples", None)  # thousands of lines
    terminal.print(json.dumps(report, indent=1))
    is_ok = report["verdict"] == "ok"
    terminal.print(terminal.verdict(f"Verdict: {report['verdict']}", is_expected=is_ok))


def markdown(report: dict[str, Any]) -> str:
    """Return the report as Markdown: a list of facts, and a table for each list of rows."""
    facts = {"load of the machine": f"{os.getloadavg()[0]:.1f}"}
    tables = []
    for name, value in report.items():
        if name in ("samples", "settings", "what", "grew", "expected"):
            continue  # thousands of rows, part of the command, or in the table `growth`
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ([_cell(row.get(key, "")) for key in value[0]] for row in value)
            headings = [HEADINGS.get(key, key.replace("_", " ")) for key in value[0]]
            tables.append(
                f"{HEADINGS.get(name, name).capitalize()}:\n\n{marked.table(headings, rows)}"
            )
        else:
            facts[name] = _cell(value)
    lines = (f"- {name.replace('_', ' ')}: {value}\n" for name, value in facts.items())
    return "\n".join(["".join(lines), *tables])


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        cells = {name: _cell(of) for name, of in value.items()}
        return ", ".join(
            f"{name}: ({cell})" if isinstance(value[name], dict) else f"{name}: {cell}"
            for name, cell in cells.items()
        )
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
