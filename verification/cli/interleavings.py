"""Run small programs in every order of their store operations, on real servers.

Example: manage.py verify interleavings --backend redis
"""

import json
from argparse import ArgumentParser
from dataclasses import dataclass
from typing import Any

from loadtest.game.levels import RESULTS
from loadtest.kernel.params import Params, PlanError, param
from loadtest.kernel.session import Row, events
from loadtest.kernel.terminal import Terminal
from loadtest.kernel.topology import Topology
from verification.interleavings.programs import PARTS, PROGRAMS

LIMIT, MOST = 12_000, 10**9


@dataclass(frozen=True, kw_only=True)
class Search(Params):
    """The programs, and how many of their interleavings."""

    parts: tuple[str, ...] = param(
        PARTS, "programs to run", choices=PARTS, option="backend", default_text="all"
    )
    limit: int = param(LIMIT, "most interleavings of each program", limits=(1, MOST))
    keep: bool = param(
        False, "keep the counts for the game to show; needs all programs", const=True
    )

    def check(self) -> None:
        """Raise PlanError if the counts are to be kept and are not complete."""
        if self.keep and (self.parts != PARTS or self.limit < LIMIT):
            raise PlanError(f"--keep needs all programs, and a limit of at least {LIMIT:,}.")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the choice of programs, the limit, and whether to keep the counts."""
    Search.add_options(parser)


def handle(terminal: Terminal, **options: Any) -> int:
    """Print what was found; return 1 unless each program violates what it should."""
    asked = Search.of(options)
    names = [name for name in PROGRAMS if name.partition("/")[0] in asked.parts]
    found: list[Row] = []
    servers = ["redis", *(["redlock"] if "redlock" in asked.parts else [])]
    wanted = {"names": names, "limit": asked.limit}
    runner, topology = "verification.interleavings.runner", Topology(servers=servers)
    with terminal.bar() as bar:
        for event in events(runner, wanted, topology, {}, bar.show):
            if event["event"] == "program":
                found.append(event["program"])
    if asked.keep:
        keep(found)
    terminal.show({"programs": found}, describe)
    return 0 if all(row["is_expected"] for row in found) else 1


def keep(found: list[dict[str, Any]]) -> None:
    """Write the counts that the game shows."""
    kept = ("runs", "is_complete", "violations")
    counts = {row["name"]: {name: row[name] for name in kept} for row in found}
    RESULTS.write_text(json.dumps(counts, indent=1) + "\n")


def _clients(row: dict[str, Any]) -> str:
    clients: dict[str, list[str]] = {}
    for client, words in row["clients"].items():
        clients.setdefault(words, []).append(client)
    return "; ".join(f"{', '.join(names)}: {words}" for words, names in clients.items())


def _verdict(row: dict[str, Any]) -> str:
    if row["violation"]:
        return f"{row['violation']} in {row['violations']:,}, first in run {row['first']:,}"
    return "no violation" if row["is_complete"] else "none found"


def describe(terminal: Terminal, found: dict[str, Any]) -> None:
    """Print each program, its verdict and the shortest violating run."""
    for row in found["programs"]:
        count = f"{'' if row['is_complete'] else 'first '}{row['runs']:,} interleavings"
        verdict = terminal.verdict(_verdict(row), is_expected=row["is_expected"])
        terminal.print(f"{row['name']}: {count}, {verdict}. {row['seconds']} s")
        terminal.print(f"  {' | '.join([_clients(row), *row['faults']])}")
        for place, step in enumerate(row["trace"], 1):
            terminal.print(f"  {place}. {step}")
