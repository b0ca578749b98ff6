"""Reproduce classic lock failures on real servers: the broken code, then the repaired code.

Example: manage.py lab scenario holder-paused --html paused.html
"""

from argparse import ArgumentParser
from collections import Counter
from typing import Any

from loadtest.charts.terminal import Terminal, check_file
from loadtest.cli import add_file, add_numbers
from loadtest.load.plan import PlanError, keep_within
from loadtest.scenarios import SCENARIOS, export, run
from locking.exceptions import unknown

CHART_FORMATS = ("svg", "png")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the scenario names and the output files."""
    parser.set_defaults(print_help=parser.print_help)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a scenario from --list, or all")
    parser.add_argument("--list", action="store_true", help="list scenarios and exit")
    add_numbers(parser, [("rounds", 1, "repeat the scenarios, and count how often each is shown")])
    add_file(parser, "html", "self-contained HTML report")
    for suffix in CHART_FORMATS:
        add_file(parser, suffix, f"write two {suffix} charts each", metavar="DIR")
    meaning = "update the scenarios and charts in docs/reference/faults.md; needs all scenarios"
    add_file(parser, "write", meaning)


def handle(terminal: Terminal, **options: Any) -> int:
    """Run the scenarios; return 1 unless every verdict is ok."""
    names: list[str] = list(dict.fromkeys(options["names"]))
    if options["list"]:
        found = [{"name": s.name, "row": s.row, "title": str(s.title)} for s in SCENARIOS.values()]
        terminal.show({"scenarios": found}, _describe_list)
        return 0
    if names == ["all"]:
        names = list(SCENARIOS)
    for name in names:
        if name not in SCENARIOS:
            raise PlanError(unknown("scenario", name, [*SCENARIOS, "all"]))
    if not names:
        options["print_help"]()
        return 2
    if options["write"] and set(names) != set(SCENARIOS):
        raise PlanError("--write needs all scenarios")
    rounds: int = options["rounds"]
    keep_within({"rounds": (1, 1000)}, options)
    if rounds > 1 and any(options[file] for file in ("html", "write", *CHART_FORMATS)):
        raise PlanError("Files show one round: leave out --rounds.")
    check_file("html", options["html"])
    check_file("write", options["write"], export.PART)
    with terminal.bar() as bar:
        report = run(names * rounds, bar.show)
    failed = [result for result in report["scenarios"] if result["verdict"] != "ok"]
    if options["html"]:
        options["html"].write_text(export.html(report))
    for suffix in CHART_FORMATS:
        if options[suffix]:
            export.write_charts(report, options[suffix], suffix=suffix)
    if options["write"] and not failed:
        export.write(report, options["write"])
    if rounds > 1:
        terminal.show(_counted(report), _describe_counts)
    else:
        terminal.show(report, _describe)
    return 1 if failed else 0


def _counted(report: dict[str, Any]) -> dict[str, Any]:
    """Return how often each scenario had each verdict, and why others than ok."""
    rows: dict[str, dict[str, Any]] = {}
    for result in report["scenarios"]:
        counts = {"ok": 0, "not-run": 0, "failed": 0, "recordings": 0, "why": Counter()}
        row = rows.setdefault(result["name"], {"name": result["name"], **counts})
        row[result["verdict"]] += 1
        row["recordings"] += len(result["halves"])
        row["why"].update(filter(None, [result["why"]]))
    return {"versions": report["versions"], "scenarios": list(rows.values())}


def _describe_counts(terminal: Terminal, counted: dict[str, Any]) -> None:
    rows = counted["scenarios"]
    columns = ("name", "ok", "not-run", "failed")
    cells = [tuple(str(row[column]) for column in columns) for row in rows]
    terminal.table(("scenario", "shown", "not shown", "failed"), cells)
    for row in rows:
        for why, often in row["why"].items():
            terminal.print(f"{row['name']}: {why} ({often} ×)")
    recordings = sum(row["recordings"] for row in rows)
    terminal.print(f"{recordings} recordings, none with two leases of one name in one store.")


def _describe(terminal: Terminal, report: dict[str, Any]) -> None:
    for result in report["scenarios"]:
        is_ok = result["verdict"] == "ok"
        word = "as expected" if is_ok else result["verdict"]
        verdict = terminal.verdict(word, is_expected=is_ok)
        terminal.print(f"{result['name']}: {verdict}. {result['why']}".rstrip())
        for sentence in SCENARIOS[result["name"]].describe(result):
            terminal.print(f"  {sentence}")


def _describe_list(terminal: Terminal, found: dict[str, Any]) -> None:
    rows = [tuple(scenario.values()) for scenario in found["scenarios"]]
    terminal.table(("name", "row", "what happens"), rows)
