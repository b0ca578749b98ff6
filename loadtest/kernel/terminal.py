"""The output of the lab's commands: JSON or tables on stdout, progress on stderr."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from inventory.management.console import HelpfulCommand, Rows
from loadtest.kernel import marked
from loadtest.kernel.params import PlanError


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

    def targets(self, targets: Sequence[dict[str, Any]]) -> None:
        """Write a table of targets, if there are any."""
        words = {True: "met", False: "MISSED", None: "not measured"}
        rows = [
            (
                one["target"],
                "" if one["value"] is None else f"{one['value']:g}",
                self.verdict(words[one["met"]], is_expected=one["met"] is not False),
            )
            for one in targets
        ]
        if rows:
            self.table(("target", "measured", "met"), rows)


def check_file(option: str, file: Path | None, part: str = "") -> None:
    """Raise PlanError if a result cannot be written to the file, before a run of minutes.

    With `part`, the file must be a page with these markers.
    """
    if file is None:
        return
    place = file if file.exists() else file.parent
    if file.is_dir() or not (file.parent.is_dir() and os.access(place, os.W_OK)):
        raise PlanError(f"--{option}: cannot write {file}.")
    if part:
        try:
            marked.around(file, part)
        except (OSError, ValueError) as error:
            raise PlanError(f"--{option}: {error}") from error


class Bar(Progress):
    """A progress bar on stderr, with the rate and the remaining time."""

    def __init__(self, *, disable: bool) -> None:
        super().__init__(console=Console(stderr=True), transient=True, disable=disable)

    def show(self, event: dict[str, Any]) -> None:
        """Show an event if it is one of an experiment that has steps."""
        if "system" in event:
            self.draw(event["system"], event["step"] - 1, event["of"])

    def draw(self, what: str, done: int, total: int, rate: str = "") -> None:
        """Show the current step and how much is done; a smaller `done` starts a new estimate."""
        if not self.tasks:
            self.add_task("")
        if done < self.tasks[0].completed:
            self.reset(self.tasks[0].id)
        words = f"{what} {rate}".strip()
        self.update(self.tasks[0].id, description=words, completed=done, total=total)
