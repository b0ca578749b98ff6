"""The output of the lab's commands: JSON or tables on stdout, progress on stderr."""

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from inventory.management.console import HelpfulCommand
from loadtest.kernel import marked
from loadtest.kernel.params import PlanError

Rows = Iterable[Sequence[str]]
_NUMBER = re.compile(r"[-+]?\d[\d.,/]*( ?\w{1,2}|%)?")


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
        """Write a table and an empty line. In a terminal words fold, but numbers stay whole.

        A row may be shorter than the headings; an empty one separates groups.
        """
        lines = [[*row] for row in rows]
        console = Console(width=10_000, force_terminal=True, color_system="standard")
        shown = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="")
        for heading, *cells in zip_longest(headings, *lines, fillvalue=""):
            if all(_NUMBER.fullmatch(cell) for cell in cells if cell):
                width = console.measure(Text("\n".join((heading, *cells)))).maximum
                shown.add_column(Text(heading), justify="right", width=width)
            else:
                shown.add_column(Text(heading), overflow="fold")
        for line in lines:
            shown.add_row(*map(Text.from_ansi, line))
        if self._command.stdout.isatty():
            console.width = max(get_terminal_size().columns, console.measure(shown).minimum)
        with console.capture() as text:
            console.print(shown)
        for written in text.get().splitlines():
            self.print(written.rstrip())
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
