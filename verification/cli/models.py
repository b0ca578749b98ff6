"""Search all states of the models of the protocols for a way to break their promises.

Example: manage.py verify models switch
"""

from argparse import ArgumentParser
from typing import Any

from loadtest.kernel.params import PlanError
from loadtest.kernel.terminal import Terminal
from locking.exceptions import unknown
from verification.protocols import PROTOCOLS
from verification.protocols.search import report


def add_arguments(parser: ArgumentParser) -> None:
    """Add the names of the models."""
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROTOCOLS))


def handle(terminal: Terminal, **options: Any) -> int:
    """Print the verdicts; return 1 unless each variant breaks the promise that it should."""
    names = options["names"] or list(PROTOCOLS)
    if wrong := [name for name in names if name not in PROTOCOLS]:
        raise PlanError(unknown("model", wrong[0], PROTOCOLS))
    found = [row for name in names for row in report(PROTOCOLS[name])]
    terminal.show({"models": found}, _describe)
    return 0 if all(row["is_expected"] for row in found) else 1


def _describe(terminal: Terminal, found: dict[str, Any]) -> None:
    for row in found["models"]:
        verdict = terminal.verdict(row["verdict"], is_expected=row["is_expected"])
        name = f"{row['model']}, {row['variant']}"
        terminal.print(f"{name}: {verdict}, {row['states']:,} states. {row['about']}")
        for place, step in enumerate(row["trace"], 1):
            terminal.print(f"  {place}. {step['text']}")
