"""What the lab's commands write: JSON or tables on stdout, progress on stderr."""

import json
from collections.abc import Iterable
from typing import Any, Protocol

from django.core.management.base import OutputWrapper
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn


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

    def tell(self, result: dict[str, Any], drawn_by: Drawer, *, width: int) -> None:
        """The report's tables and remarks."""
        console = self.console(width)
        for drawn in drawn_by.tables(result):
            console.print(drawn)
        for line in drawn_by.remarks(result):
            console.print(line, soft_wrap=True)

    def console(self, width: int) -> Console:
        """A terminal tells its width; a file gets a page this wide."""
        given = None if self.stdout.isatty() else width
        return Console(file=self.stdout, width=given)  # type: ignore[arg-type]


class Bar(Progress):
    """A bar for each run, on stderr."""

    def __init__(self, *, disable: bool) -> None:
        columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn())
        console = Console(stderr=True)
        super().__init__(*columns, console=console, transient=True, disable=disable)
        self._runs: dict[object, TaskID] = {}

    def show(self, event: dict[str, Any]) -> None:
        """Draw an event of `loadtest.run`."""
        if event["event"] != "progress":
            return
        names = (event["backend"], event["discipline"], event["repeat"])
        if names not in self._runs:
            self._runs[names] = self.add_task("{} + {} #{}".format(*names), total=event["of"])
        self.update(self._runs[names], completed=event["served"])

    def show_step(self, event: dict[str, Any]) -> None:
        """Draw an event of `lab bench`."""
        if event["event"] == "progress":
            if "bench" not in self._runs:
                self._runs["bench"] = self.add_task("", total=event["of"])
            name = self._runs["bench"]
            self.update(name, description=event["system"], completed=event["step"] - 1)
