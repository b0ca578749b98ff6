"""Write docs/reference/faults.md from the reports of `make faults`.

python -m tests.fault_page docs/reference/faults.md var/faults-mariadb.json var/faults-sqlite.json
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import django

from devservers.programs import installed
from loadtest.kernel import marked
from tests.fault_rows import ROWS

PART = "faults"
BACKENDS = (
    "none",
    "process",
    "database",
    "mysql_session",
    "postgresql_session",
    "postgresql_transaction",
    "redis",
    "redlock",
    "zookeeper",
)
ANY = "shop, jobs"
"""The column of tests that concern no backend, or several at once."""
Run = dict[str, Any]


def page_of(reports: Sequence[dict[str, Any]], machine: str) -> str:
    """Return the text between the page's markers."""
    runs: list[Run] = [run for report in reports for run in report["tests"]]
    held = sum(run["verdict"] == "ok" for run in runs)
    there = {run["row"] for run in runs}
    missing = ", ".join(row for row in ROWS if row not in there) or "none"
    seconds = sum(report["seconds"] for report in reports)
    summary = f"{held} of {len(runs)} tests passed in {seconds:.0f} s; rows without: {missing}. "
    return "\n".join(["", *textwrap.wrap(summary + machine, 100), "", matrix(runs), table(runs)])


def matrix(runs: Sequence[Run]) -> str:
    """Return a line per row and a column per backend: tests that held, faults injected."""
    lines = []
    for row, (fault, promised) in ROWS.items():
        of = [run for run in runs if run["row"] == row]
        cells = [_cell([run for run in of if _column(run) == one]) for one in (*BACKENDS, ANY)]
        lines.append([row, fault, promised, *cells, _judges(of)])
    return marked.table(["row", "fault", "guarantee", *BACKENDS, ANY, "judged by"], _cells(lines))


def table(runs: Sequence[Run]) -> str:
    """Return a line per test, with the results of all its backends."""
    by: dict[tuple[str, str], list[Run]] = {}
    for run in sorted(runs, key=lambda one: (list(ROWS).index(one["row"]), one["test"])):
        by.setdefault((run["row"], run["test"]), []).append(run)
    lines = []
    for (row, test), some in by.items():
        backends = ", ".join(sorted({run["backend"] for run in some}))
        injected = ("XF: " if some[0]["xf"] else "") + _tally(some, "fired")
        seconds = f"{sum(run['seconds'] for run in some):.0f}"
        verdict = "ok" if all(run["verdict"] == "ok" for run in some) else "**failed**"
        observed = _tally(some, "seen")
        lines.append([row, backends, injected, observed, seconds, verdict, f"`{test}`"])
    names = ["row", "backend", "injected", "observed", "s", "verdict", "test"]
    return marked.table(names, _cells(lines))


def _cells(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[cell.replace("|", "/") for cell in row] for row in rows]


def _column(run: Run) -> str:
    """Return the backend's alias in the settings, for any variant of it."""
    found = [name for name in BACKENDS if re.search(rf"\b{name}\b", run["backend"])]
    return found[0] if len(found) == 1 else ANY


def _cell(runs: Sequence[Run]) -> str:
    held = sum(run["verdict"] == "ok" for run in runs)
    injected = sum(sum(run["fired"].values()) for run in runs)
    verdict = f"{held} ok" if held == len(runs) else f"**{len(runs) - held} failed**, {held} ok"
    return f"{verdict}, {injected} injected" if runs else ""


def _judges(runs: Sequence[Run]) -> str:
    """Return what checks the shop's stock at the end of a row's tests, if they use stock."""
    seen = " ".join(what for run in runs for what in run["seen"])
    return " + ".join(judge for judge in ("audit", "checker") if judge in seen)


def _tally(runs: Sequence[Run], what: str) -> str:
    tally: Counter[str] = Counter()
    for run in runs:
        tally.update(run[what])
    return "; ".join(name if n == 1 else f"{name} × {n}" for name, n in sorted(tally.items()))


def machine() -> str:
    """Return the date, the cores and the versions."""
    versions = [f"Python {platform.python_version()}", f"Django {django.get_version()}"]
    programs = {"MariaDB": "mariadbd", "PostgreSQL": "postgres", "Redis": "redis-check-rdb"}
    for name, program in programs.items():
        if path := installed(program):
            version = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
            versions += [
                f"{name} {found[0]}" for found in [re.search(r"\d+\.[.\d]+", version)] if found
            ]
    jars = Path("/usr/share/java").glob("zookeeper-[0-9]*.jar")
    versions += [f"ZooKeeper {jar.stem.rpartition('-')[2]}" for jar in jars]
    return f"{datetime.date.today()}, {os.cpu_count()} cores, {', '.join(versions)}."


def main(page: Path, *files: Path) -> None:
    """Replace the text between the page's markers by the tables of the reports."""
    reports = [json.loads(file.read_text()) for file in files]
    marked.write(page, PART, page_of(reports, machine()) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
