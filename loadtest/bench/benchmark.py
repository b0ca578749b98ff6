"""A benchmark: parameters, rounds, columns and targets, which `lab bench` measures and shows."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

from loadtest.kernel import marked
from loadtest.kernel.params import param
from loadtest.kernel.report import Columns, Row, Target
from loadtest.kernel.session import Command, Progress, events
from loadtest.kernel.terminal import Terminal
from loadtest.kernel.topology import Topology

Lines = dict[str, Row]
Cells = list[list[str]]


def targets(subject: str) -> list[Target]:
    """Return the targets of targets.toml for a subject."""
    found = tomllib.loads(Path(__file__).with_name("targets.toml").read_text("utf-8"))
    return [Target(text, *about) for text, about in found[subject].items()]


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

    def table(self, report: Row, figures: Iterable[str], kind: int) -> tuple[list[str], Cells]:
        """Return the headings and rows for a terminal (0) or the docs (1).

        An empty row separates two families.
        """
        columns = {one: self.columns[one][1] for one in figures}
        names = {role: both[kind] for role, both in self.names.items()}
        found: Cells = []
        for _family, group in groupby(self.rows(report), key=lambda row: row.get("family")):
            for row in group:
                name = names.get(row.get("role", ""), "{}").format(row["line"])
                texts = (text(row[one]) if one in row else "" for one, text in columns.items())
                found.append([name, *texts])
            found.append([])
        return [self.heading, *(self.columns[one][0] for one in columns)], found[:-1]

    def describe(self, terminal: Terminal, report: Row) -> None:
        """Print the table, the targets and the remarks."""
        terminal.table(*self.table(report, self.columns, 0))
        terminal.targets(report["targets"])
        for line in (*self.wrong(report), *self.notes(report)):
            terminal.print(line)
        for name, about in (report["versions"] | report["missing"]).items():
            parts = about.items() if isinstance(about, dict) else ()
            words = ", ".join(f"{what} {value}" for what, value in parts)
            terminal.print(f"{name}: {words or about}")

    def markdown(self, report: Row) -> str:
        """Return the table in Markdown."""
        headings, rows = self.table(report, self.in_docs, 1)
        # Line breaks in the headings are for terminals.
        names = [one.replace("-\n", "").replace("\n", " ").strip() for one in headings]
        versions = marked.versions(report["versions"])
        rounds = f"Medians of {report['settings']['rounds']} rounds on {versions}."
        return f"{marked.table(names, filter(None, rows))}\n{rounds}\n"
