"""Run small programs in every order of their store operations, on real servers.

Example: manage.py verify interleavings --backend redis
"""

import json
from dataclasses import dataclass
from typing import Any

from loadtest.game.levels import LEVELS, RESULTS
from loadtest.kernel.params import Params, PlanError, param
from loadtest.kernel.session import Command, Row, events
from loadtest.kernel.terminal import Bar, Terminal
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


class Interleavings(Command):
    """`verify interleavings`."""

    params = Search

    def run(self, asked: Search, bar: Bar) -> Row:
        """Search the programs, and keep the counts if that is asked for."""
        names = [name for name in PROGRAMS if name.partition("/")[0] in asked.parts]
        wanted = {"names": names, "limit": asked.limit}
        topology = Topology(servers=["redis", *(["redlock"] if "redlock" in asked.parts else [])])
        told = events("verification.interleavings.runner", wanted, topology, {}, bar.show)
        found = [event["program"] for event in told if event["event"] == "program"]
        if asked.keep:
            keep(found)
        return {"programs": found}

    def is_ok(self, report: Row) -> bool:
        """Return True if each program violates what it should."""
        return all(row["is_expected"] for row in report["programs"])

    def describe(self, terminal: Terminal, report: Row) -> None:
        """Print each program, its verdict and the shortest violating run."""
        for row in report["programs"]:
            count = f"{'' if row['is_complete'] else 'first '}{row['runs']:,} interleavings"
            verdict = terminal.verdict(_verdict(row), is_expected=row["is_expected"])
            terminal.print(f"{row['name']}: {count}, {verdict}. {row['seconds']} s")
            terminal.print(f"  {' | '.join([_clients(row), *row['faults']])}")
            for place, step in enumerate(row["trace"], 1):
                terminal.print(f"  {place}. {step}")


COMMAND = Interleavings()


def keep(found: list[Row]) -> None:
    """Write the counts that the game shows: of levels in which every order kept the promise."""
    proved = {row["name"]: row["runs"] for row in found if row["is_complete"] and not row["first"]}
    counts = {name: proved[f"game/{name}"] for name in LEVELS if f"game/{name}" in proved}
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
