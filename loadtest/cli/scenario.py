"""Run the classic failures of a lock, broken and repaired, on real servers."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtest.charts.terminal import Bar, Terminal, check_file
from loadtest.cli import JSON_HELP
from loadtest.load.plan import PlanError
from loadtest.scenarios import SCENARIOS, export, run

PAGE_WIDTH = 100
CHART_FORMATS = ("svg", "png")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the scenario names and the output files."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="a name from --list, or all")
    parser.add_argument(
        "--list", action="store_true", help="list the scenarios without running any"
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write one page without external resources"
    )
    for suffix in CHART_FORMATS:
        parser.add_argument(
            f"--{suffix}", type=Path, metavar="DIR", help="write two charts per scenario"
        )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="write all scenarios and their charts into docs/reference/faults.md",
    )


def handle(terminal: Terminal, **options: Any) -> int:
    """Run the scenarios; return 1 unless every verdict is ok."""
    names: list[str] = list(dict.fromkeys(options["names"]))
    if options["list"]:
        return _list(terminal, as_json=options["json"])
    if names == ["all"]:
        names = list(SCENARIOS)
    if unknown := [name for name in names if name not in SCENARIOS]:
        raise PlanError(f"no scenario {unknown[0]!r}; there are: {', '.join(SCENARIOS)}")
    if not names:
        raise PlanError("name a scenario, or all; --list prints the names")
    if options["write"] and set(names) != set(SCENARIOS):
        raise PlanError("--write needs all scenarios")
    check_file("html", options["html"])
    check_file("write", options["write"], export.PART)
    with Bar(disable=options["json"]) as bar:
        report = run(names, bar.show_step)
    failed = [result for result in report["scenarios"] if result["verdict"] != "ok"]
    if options["html"]:
        options["html"].write_text(export.html(report))
    for suffix in CHART_FORMATS:
        if options[suffix]:
            export.write_charts(report, options[suffix], suffix=suffix)
    if options["write"] and not failed:
        export.write(report, options["write"])
    if options["json"]:
        terminal.json(report)
    else:
        console = terminal.console(PAGE_WIDTH)
        for result in report["scenarios"]:
            console.print(f"{result['name']}  [bold]{result['verdict']}[/bold]  {result['why']}")
            for sentence in SCENARIOS[result["name"]].describe(result):
                console.print(f"  {sentence}", highlight=False)
    return 1 if failed else 0


def _list(terminal: Terminal, *, as_json: bool) -> int:
    if as_json:
        rows = [{"name": s.name, "row": s.row, "title": str(s.title)} for s in SCENARIOS.values()]
        terminal.json({"scenarios": rows})
        return 0
    table = Table(box=SIMPLE_HEAD)
    for column in ("name", "row", "what happens"):
        table.add_column(column, no_wrap=True)
    for scenario in SCENARIOS.values():
        table.add_row(scenario.name, scenario.row, str(scenario.title))
    terminal.console(PAGE_WIDTH).print(table)
    return 0
