"""Sell out a sale with each of several locks; exit 1 if a verdict is not as expected.

Example: manage.py lab run --backend none --backend redis --buyers 200 --stock 50
"""

from typing import Any

from loadtest.charts.export import FILES, as_file
from loadtest.kernel.session import Command
from loadtest.kernel.terminal import Bar, Terminal
from loadtest.load import report as reports
from loadtest.load.plan import Plan
from loadtest.load.progress import LoadProgress
from loadtest.load.run import Report, run

COLUMNS = ("lock", "sold", "orders/s", "wait, ms\np50/p95/p99", "verdict")


class LoadTest(Command):
    """`lab run`."""

    params = Plan
    files = FILES

    def run(self, asked: Plan, bar: Bar) -> Report:
        """Return the report of a plan."""
        load = LoadProgress()

        def show(event: dict[str, Any]) -> None:
            if load.update(event):
                bar.draw(load.now, load.done, load.total, f"{load.per_second:.0f} buyers/s")

        return run(asked, show)

    def is_ok(self, report: Report) -> bool:
        """Return True if each guard kept its promise."""
        return all(reports.met(one) for one in report["runs"])

    def describe(self, terminal: Terminal, report: Report) -> None:
        """Print a sentence, the first lost updates, a table and the surprises."""
        terminal.print(reports.sentence(report["runs"]))
        for _name, one in reports.with_lost_updates(report["runs"]):
            terminal.print(f"{one['backend']} + {one['discipline']}: {reports.explain(one)}")
        terminal.print()
        terminal.table(COLUMNS, [_cells(one, terminal) for one in report["runs"]])
        for line in reports.surprises(report["runs"]):
            terminal.print(terminal.verdict(line, is_expected=False))

    def as_file(self, report: Report, suffix: str) -> bytes:
        """Return the contents of a file."""
        return as_file(report, suffix)


COMMAND = LoadTest()


def _cells(run: dict[str, Any], terminal: Terminal) -> tuple[str, ...]:
    return (
        f"{run['backend']} + {run['discipline']}",
        f"{run['sold']:,}/{run['stock']:,}",
        f"{run['orders_per_second']:,.0f}",
        "/".join(f"{wait:,.0f}" for wait in run["wait_ms"].values()),
        terminal.verdict(reports.words(run), is_expected=reports.met(run)),
    )
