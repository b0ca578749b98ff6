"""The output of the lab's commands: JSON or tables on stdout, progress on stderr."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from inventory.management.console import HelpfulCommand, Rows
from loadtest.charts import marked
from loadtest.load.plan import PlanError
from loadtest.load.progress import LoadProgress


class Terminal:
    """The output of a command."""

    def __init__(self, command: HelpfulCommand, *, as_json: bool = False) -> None:
        self._command = command
        self.as_json = as_json

    def bar(self) -> "Bar":
        """Return a progress bar, which is not shown if the output is JSON."""
        return Bar(disable=self.as_json)

    def show(self, result: Any, describe: "Callable[[Terminal, Any], object]") -> None:
        """Write one JSON object only, or let `describe` write the result for people."""
        if self.as_json:
            self.print(json.dumps(result))
        else:
            describe(self, result)

    def print(self, line: str = "") -> None:
        """Write a line."""
        self._command.stdout.write(line)

    def table(self, headings: Sequence[str], rows: Rows) -> None:
        """Write a table and an empty line."""
        self._command.print_table(headings, rows)
        self.print()

    def verdict(self, text: str, *, is_expected: bool) -> str:
        """Return a verdict in green if it is as expected, else in red."""
        style = self._command.style
        return style.SUCCESS(text) if is_expected else style.ERROR(text)

    def target(self, target: dict[str, Any]) -> tuple[str, str, str]:
        """Return a line of a table of targets."""
        value, is_met = target.get("value"), target["met"]
        if is_met is None:
            return target["target"], "", "not measured"
        met = self.verdict("met" if is_met else "MISSED", is_expected=is_met)
        return target["target"], "" if value is None else f"{value:g}", met


def page(
    headings: Iterable[str], rows: Iterable[list[str]], rounds: int, versions: dict[str, Any]
) -> str:
    """Return a table in Markdown; line breaks in the headings are for terminals and removed."""
    names = [heading.replace("-\n", "").replace("\n", " ").strip() for heading in headings]
    found = ", ".join(f"{name} {value}" for name, value in versions.items())
    return f"{marked.table(names, rows)}\nMedians of {rounds} rounds on {found}.\n"


def check_file(option: str, file: Path | None, part: str = "") -> None:
    """Raise PlanError if a result cannot be written to the file, before a run of minutes.

    With `part`, the file must be a page with these markers.
    """
    if file is None:
        return
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise PlanError(f"--{option}: cannot write {file}.")
    if part:
        try:
            marked.around(file, part)
        except (OSError, ValueError) as error:
            raise PlanError(f"--{option}: {error}") from error


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
        self._load = LoadProgress()

    def __exit__(self, *exc_info: Any) -> None:
        """Fill the bar if the work is done."""
        if exc_info[0] is None and self._task is not None:
            self.update(self._task, completed=self.tasks[0].total)
        super().__exit__(*exc_info)

    def show(self, event: dict[str, Any]) -> None:
        """Show an event of `loadtest.load.run`, or of an experiment that has steps."""
        if "system" in event:
            self.draw(event["system"], event["step"] - 1, event["of"])
        elif self._load.update(event):
            load = self._load
            self.draw(load.now, load.done, load.total, f"{load.per_second:.0f} buyers/s")

    def draw(self, what: str, done: int, total: int, rate: str = "") -> None:
        """Show the current step and how much is done; a smaller `done` starts a new estimate."""
        if self._task is None:
            self._task = self.add_task("", rate="")
        elif done < self.tasks[0].completed:
            self.reset(self._task)
        self.update(self._task, description=what, completed=done, total=total, rate=rate)
