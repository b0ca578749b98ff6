"""A benchmark: parameters, rounds, columns and targets, which `lab bench` measures and shows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from loadtest.kernel.params import param
from loadtest.kernel.report import Columns, Row, grouped, page
from loadtest.kernel.session import Command, Progress, events
from loadtest.kernel.terminal import Terminal
from loadtest.kernel.topology import Topology

Lines = dict[str, Row]


def rounds_param(rounds: int) -> Any:
    """Return the field of the number of rounds."""
    meaning = "rounds; the median is reported"
    return param(rounds, meaning, limits=(1, 50), default_text="3 for locks, else 5")


def measure(name: str, asked: Row, topology: Topology, report: Row, progress: Progress) -> Lines:
    """Run a benchmark; return its lines by name, each with its facts and its `rounds`."""
    lines: Lines = {}
    for event in events(name, asked, topology, report, progress):
        if event["event"] == "round":
            line = lines.setdefault(event["line"], {"line": event["line"], "rounds": []})
            line["rounds"].append(event["round"])
            line |= {key: event[key] for key in event.keys() - {"event", "line", "round"}}
    return lines


class Benchmark(Command):
    """One subject of `lab bench`.

    Its report has `settings`, `missing` stores with reasons, `versions`, `targets` and the lines.
    """

    heading: ClassVar[str]
    columns: ClassVar[Columns]
    in_docs: ClassVar[Sequence[str]]
    """The columns of the table in the docs."""
    names: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """By role of a line: the format of its name in a terminal and in the docs."""

    def rows(self, report: Row) -> list[Row]:
        """Return the lines of the table."""
        return [row for row in report["lines"] if self.in_docs[0] in row]

    def wrong(self, report: Row) -> Iterator[str]:
        """Yield what breaks a promise of the shop. Slow is not wrong: it depends on the machine."""
        yield from ()

    def notes(self, report: Row) -> Iterator[str]:
        """Yield remarks."""
        yield from ()

    def is_ok(self, report: Row) -> bool:
        """Return True if every store was there and nothing was wrong."""
        return not report["missing"] and not any(self.wrong(report))

    def named(self, rows: list[Row], kind: int) -> list[tuple[str, Row]]:
        """Return the rows with their names, in a terminal (0) or in the docs (1)."""
        formats = {role: both[kind] for role, both in self.names.items()}
        return [(formats.get(row.get("role", ""), "{}").format(row["line"]), row) for row in rows]

    def describe(self, terminal: Terminal, report: Row) -> None:
        """Print the table, the targets and the remarks."""
        headings = (heading for heading, _text in self.columns.values())
        rows = grouped(self.columns, self.named(self.rows(report), 0))
        terminal.table((self.heading, *headings), rows)
        terminal.targets(report["targets"])
        for line in (*self.wrong(report), *self.notes(report)):
            terminal.print(line)
        for name, about in (report["versions"] | report["missing"]).items():
            parts = about.items() if isinstance(about, dict) else ()
            words = ", ".join(f"{what} {value}" for what, value in parts)
            terminal.print(f"{name}: {words or about}")

    def markdown(self, report: Row) -> str:
        """Return the table in Markdown."""
        columns = {name: self.columns[name] for name in self.in_docs}
        headings = (heading for heading, _text in columns.values())
        rows = filter(None, grouped(columns, self.named(self.rows(report), 1)))
        rounds = report["settings"]["rounds"]
        return page((self.heading, *headings), rows, rounds, report["versions"])
