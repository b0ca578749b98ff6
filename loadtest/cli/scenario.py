"""Reproduce classic failures of locks and flash sales on real servers, broken and repaired.

Example: manage.py lab scenario holder-paused --html paused.html
"""

from argparse import ArgumentParser
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.kernel.params import Params, PlanError, add_file, param
from loadtest.kernel.session import Command, Row
from loadtest.kernel.terminal import Bar, Terminal
from loadtest.scenarios import SCENARIOS, export, run
from locking.exceptions import unknown

CHART_FORMATS = ("svg", "png")


@dataclass(frozen=True, kw_only=True)
class Scenarios(Params):
    """The scenarios to run."""

    names: tuple[str, ...]
    rounds: int = param(
        1, "repeat the scenarios, and count how often each is shown", limits=(1, 1000)
    )

    def check(self) -> None:
        """Raise PlanError for an unknown name."""
        for name in self.names:
            if name not in SCENARIOS:
                raise PlanError(unknown("scenario", name, [*SCENARIOS, "all"]))


class ScenarioCommand(Command):
    """`lab scenario`."""

    params = Scenarios
    files = {"html": "self-contained HTML report"}
    part = "lab_scenario"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the scenario names and the output files."""
        text = "a scenario from --list, or all"
        parser.add_argument("names", nargs="*", metavar="NAME", help=text)
        parser.add_argument("--list", action="store_true", help="list scenarios and exit")
        super().add_arguments(parser)
        for suffix in CHART_FORMATS:
            add_file(parser, suffix, f"write two {suffix} charts each", metavar="DIR")

    def handle(self, terminal: Terminal, **options: Any) -> int:
        """Run the scenarios, or list all."""
        if options["list"]:
            rows = SCENARIOS.values()
            found = [{"name": one.name, "row": one.row, "title": one.title} for one in rows]
            terminal.show({"scenarios": found}, _describe_list)
            return 0
        names = list(dict.fromkeys(options["names"]))
        if not names:
            raise PlanError("Name scenarios of --list, or all of them: all.")
        asked = Scenarios.of(options, names=tuple(SCENARIOS if names == ["all"] else names))
        if options["write"] and set(asked.names) != set(SCENARIOS):
            raise PlanError("--write needs all scenarios")
        if asked.rounds > 1 and any(options[one] for one in ("html", "write", *CHART_FORMATS)):
            raise PlanError("Files show one round: leave out --rounds.")
        self.charts = {suffix: options[suffix] for suffix in CHART_FORMATS if options[suffix]}
        for suffix, folder in self.charts.items():  # before a run that may take minutes
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise PlanError(f"--{suffix}: {error}") from error
        return self.conduct(terminal, asked, **options)

    def run(self, asked: Scenarios, bar: Bar) -> Row:
        """Return the results, or with several rounds how often each scenario was shown."""
        report = run(asked.names * asked.rounds, bar.show)
        for suffix, folder in self.charts.items():
            export.write_charts(report, folder, suffix=suffix)
        return counted(report) if asked.rounds > 1 else report

    def is_ok(self, report: Row) -> bool:
        """Return True if each scenario was shown as planned."""
        rows = report["scenarios"]
        return not any(row.get("verdict", "ok") != "ok" or row.get("why") for row in rows)

    def describe(self, terminal: Terminal, report: Row) -> None:
        """Print the verdict of each scenario and what happened, or how often it was shown."""
        if "recordings" in report["scenarios"][0]:
            _describe_counts(terminal, report["scenarios"])
            return
        for result in report["scenarios"]:
            is_ok = result["verdict"] == "ok"
            word = "reproduced" if is_ok else result["verdict"]
            verdict = terminal.verdict(word, is_expected=is_ok)
            terminal.print(f"{result['name']}: {verdict}. {result['why']}".rstrip())
            for sentence in SCENARIOS[result["name"]].describe(result):
                terminal.print(f"  {sentence}")

    def as_file(self, report: Row, suffix: str) -> bytes:
        """Return the page."""
        return export.as_file(report, suffix)

    def write(self, report: Row, page: Path) -> None:
        """Update the page's counts, and keep the report for the pages to show."""
        export.keep(report)
        super().write(report, page)

    def markdown(self, report: Row) -> str:
        """Return how many scenarios were shown."""
        verdicts = [result["verdict"] for result in report["scenarios"]]
        return f"In the recording, {verdicts.count('ok')} of {len(verdicts)} were reproduced.\n"


COMMAND = ScenarioCommand()


def counted(report: dict[str, Any]) -> dict[str, Any]:
    """Return how often each scenario had each verdict, and why others than ok."""
    rows: dict[str, dict[str, Any]] = {}
    for result in report["scenarios"]:
        counts = {"ok": 0, "not-run": 0, "failed": 0, "recordings": 0, "why": Counter()}
        row = rows.setdefault(result["name"], {"name": result["name"], **counts})
        row[result["verdict"]] += 1
        row["recordings"] += len(result["halves"])
        row["why"].update(filter(None, [result["why"]]))
    return {"versions": report["versions"], "scenarios": list(rows.values())}


def _describe_counts(terminal: Terminal, rows: list[Row]) -> None:
    columns = ("name", "ok", "not-run", "failed")
    cells = [tuple(str(row[column]) for column in columns) for row in rows]
    terminal.table(("scenario", "shown", "not shown", "failed"), cells)
    for row in rows:
        for why, often in row["why"].items():
            terminal.print(f"{row['name']}: {why} ({often} ×)")
    recordings = sum(row["recordings"] for row in rows)
    terminal.print(f"{recordings} recordings, none with two leases of one name in one store.")


def _describe_list(terminal: Terminal, found: dict[str, Any]) -> None:
    rows = [tuple(scenario.values()) for scenario in found["scenarios"]]
    terminal.table(("name", "row", "what happens"), rows)
