"""What the lab's commands write: JSON or tables on stdout, progress on stderr."""

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
    """A report: the module that draws its tables and remarks."""

    def tables(self, result: dict[str, Any], /) -> Iterable[RenderableType]: ...
    def remarks(self, result: dict[str, Any], /) -> Iterable[str]: ...


class Terminal:
    """The command's output."""

    def __init__(self, stdout: OutputWrapper) -> None:
        self.stdout = stdout

    def json(self, result: object) -> None:
        """One JSON object, nothing else."""
        self.stdout.write(json.dumps(result))

    def print_report(
        self, result: dict[str, Any], drawn_by: Drawer, *, as_json: bool, width: int
    ) -> None:
        """The report as JSON, or its tables, its targets if it has some, and remarks."""
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
        """A terminal tells its width; a file gets a page this wide."""
        given = None if self.stdout.isatty() else width
        return Console(file=self.stdout, width=given)  # type: ignore[arg-type]


def page(
    headings: Iterable[str], rows: Iterable[list[str]], rounds: int, versions: dict[str, Any]
) -> str:
    """A report's table as a page of docs/ has it; a terminal breaks its headings into lines."""
    names = [heading.replace("-\n", "").replace("\n", " ").strip() for heading in headings]
    lines = [names, ["---"] * len(names), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    found = ", ".join(f"{name} {value}" for name, value in versions.items())
    return f"{table}\n\nMedians of {rounds} rounds on {found}.\n"


def check_file(option: str, file: Path | None, part: str = "") -> None:
    """PlanError when a result could not be written there: told before a run of minutes.

    `part`: the marked one of a page that is there.
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
    """How far an experiment is, how fast, and how long it will take; on stderr."""

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
        """Draw an event of `loadtest.load.run`."""
        if self._pace.update(event):
            pace = self._pace
            self.draw(pace.now, pace.done, pace.total, f"{pace.per_second:.0f} buyers/s")

    def show_step(self, event: dict[str, Any]) -> None:
        """Draw an event of an experiment that goes by steps."""
        if event["event"] == "progress":
            self.draw(event["system"], event["step"] - 1, event["of"])

    def draw(self, what: str, done: int, total: int, rate: str = "") -> None:
        """What is going on, and how much of it is done."""
        if self._task is None:
            self._task = self.add_task("", rate="")
        self.update(self._task, description=what, completed=done, total=total, rate=rate)


def _table(targets: Iterable[dict[str, Any]]) -> Table:
    """What a benchmark asked for; "SHORT" is what it did not get."""
    table = Table("target", "measured", "met", box=SIMPLE_HEAD)
    words = {True: "met", False: "SHORT", None: "not measured"}
    for target in targets:
        value = target.get("value")
        measured = "" if value is None else f"{value:g}"
        table.add_row(target["target"], measured, words[target["met"]])
    return table
