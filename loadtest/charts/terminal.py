"""The output of the lab's commands: JSON or tables on stdout, progress on stderr."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from django.core.management.base import OutputWrapper
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from loadtest.charts import marked
from loadtest.load.plan import PlanError
from loadtest.load.progress import LoadProgress


class Drawer(Protocol):
    """A module that draws the tables and remarks of a report."""

    def tables(self, result: dict[str, Any], /) -> Iterable[RenderableType]:
        """Return the tables of a report."""

    def remarks(self, result: dict[str, Any], /) -> Iterable[str]:
        """Return the remarks below the tables."""


class Terminal:
    """The output of a command."""

    def __init__(self, stdout: OutputWrapper) -> None:
        self.stdout = stdout

    def json(self, result: object) -> None:
        """Write one JSON object only."""
        self.stdout.write(json.dumps(result))

    def print_report(
        self, result: dict[str, Any], drawn_by: Drawer, *, as_json: bool, width: int
    ) -> None:
        """Write the report as JSON, or its tables, targets and remarks."""
        if as_json:
            self.json(result)
            return
        console = self.console(width)
        for drawn in drawn_by.tables(result):
            console.print(drawn)
        if targets := result.get("targets"):
            console.print(_table(targets))
        for line in drawn_by.remarks(result):
            console.print(line, soft_wrap=True)

    def console(self, width: int) -> Console:
        """Return a console: a terminal has its own width, a file gets `width`."""
        given = None if self.stdout.isatty() else width
        return Console(file=self.stdout, width=given)  # type: ignore[arg-type]


def page(
    headings: Iterable[str], rows: Iterable[list[str]], rounds: int, versions: dict[str, Any]
) -> str:
    """Return a table in Markdown; line breaks in the headings are for terminals and removed."""
    names = [heading.replace("-\n", "").replace("\n", " ").strip() for heading in headings]
    lines = [names, ["---"] * len(names), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    found = ", ".join(f"{name} {value}" for name, value in versions.items())
    return f"{table}\n\nMedians of {rounds} rounds on {found}.\n"


def check_file(option: str, file: Path | None, part: str = "") -> None:
    """Raise PlanError if a result cannot be written to the file, before a run of minutes.

    With `part`, the file must be a page with these markers.
    """
    if file is None:
        return
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise PlanError(f"{option}: {file} cannot be written")
    if part:
        try:
            marked.around(file, part)
        except (OSError, ValueError) as error:
            raise PlanError(f"{option}: {error}") from error


class Bar(Progress):
    """A progress bar on stderr, with the rate and the remaining time."""

    def __init__(self, *, disable: bool) -> None:
        super().__init__(
            TextColumn("{task.description:24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=disable,
        )
        self._task: TaskID | None = None
        self._pace = LoadProgress()

    def show(self, event: dict[str, Any]) -> None:
        """Show an event of `loadtest.load.run`."""
        if self._pace.update(event):
            pace = self._pace
            self.draw(pace.now, pace.done, pace.total, f"{pace.per_second:.0f} buyers/s")

    def show_step(self, event: dict[str, Any]) -> None:
        """Show an event of an experiment that has steps."""
        if event["event"] == "progress":
            self.draw(event["system"], event["step"] - 1, event["of"])

    def draw(self, what: str, done: int, total: int, rate: str = "") -> None:
        """Show the current step, and how much is done."""
        if self._task is None:
            self._task = self.add_task("", rate="")
        self.update(self._task, description=what, completed=done, total=total, rate=rate)


def _table(targets: Iterable[dict[str, Any]]) -> Table:
    """Return the table of the targets; "SHORT" marks those that are not met."""
    table = Table("target", "measured", "met", box=SIMPLE_HEAD)
    words = {True: "met", False: "SHORT", None: "not measured"}
    for target in targets:
        value = target.get("value")
        measured = "" if value is None else f"{value:g}"
        table.add_row(target["target"], measured, words[target["met"]])
    return table
