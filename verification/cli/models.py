"""Search all states of the models of the protocols for a way to break their promises.

Example: manage.py verify models redlock
"""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from loadtest.kernel import marked
from loadtest.kernel.params import PlanError
from loadtest.kernel.terminal import Terminal, check_file
from locking.exceptions import unknown
from verification.protocols import PROTOCOLS
from verification.protocols.search import report

PART = "lab_models"
COLUMNS = "model", "variant", "states", "verdict"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the names of the models, and the page to update."""
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROTOCOLS))
    parser.add_argument("--write", type=Path, metavar="FILE", help="update the table of this page")


def handle(terminal: Terminal, **options: Any) -> int:
    """Print the verdicts; return 1 unless each variant breaks the promise that it should."""
    names = options["names"] or list(PROTOCOLS)
    if wrong := [name for name in names if name not in PROTOCOLS]:
        raise PlanError(unknown("model", wrong[0], PROTOCOLS))
    check_file("write", options["write"], PART)
    found = [row for name in names for row in report(PROTOCOLS[name])]
    if options["write"]:
        rows = [[str(row[column]) for column in COLUMNS] for row in found]
        marked.write(options["write"], PART, f"\n{marked.table(COLUMNS, rows)}\n")
    terminal.show({"models": found}, _describe)
    return 0 if all(row["is_expected"] for row in found) else 1


def _describe(terminal: Terminal, found: dict[str, Any]) -> None:
    for row in found["models"]:
        verdict = terminal.verdict(row["verdict"], is_expected=row["is_expected"])
        name = f"{row['model']}, {row['variant']}"
        terminal.print(f"{name}: {verdict}, {row['states']:,} states. {row['about']}")
        for place, step in enumerate(row["trace"], 1):
            terminal.print(f"  {place}. {step['text']}")
