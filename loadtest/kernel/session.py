"""From parameters to a report: the steps that the commands of all experiments share.

An experiment runs in a process of its own, whose environment leads to private servers.
"""

import json
import shutil
from abc import ABC, abstractmethod
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from devservers.faults.waiting import FaultFailed
from devservers.faults.worker import WorkerProcess
from devservers.temporary import temporary_directory
from loadtest.kernel import marked
from loadtest.kernel.params import Params, add_file
from loadtest.kernel.terminal import Bar, Terminal, check_file
from loadtest.kernel.topology import Topology, private_environ

Row = dict[str, Any]
Progress = Callable[[Row], object]


class ExperimentFailed(RuntimeError):
    """An experiment ended with an unexpected error; the message ends with its log."""


class Experiment(WorkerProcess):
    """`python -m loadtest MODULE`: it starts the servers, runs the experiment and sends events."""

    def __init__(self, name: str, asked: Row, topology: Topology) -> None:
        self.name, self._folder = name, temporary_directory("lab")
        environ = private_environ(self._folder) | dict(topology.environ)
        super().__init__(
            name, environ, log=self._folder / "log", module="loadtest", cwd=self._folder
        )
        self.write_line(json.dumps({"asked": asked, "topology": asdict(topology)}))

    def events(self) -> Iterator[Row]:
        """Yield the events up to the end; raise ExperimentFailed if the process ends before."""
        while True:
            try:
                event = self.receive(None)
            except FaultFailed as error:
                raise ExperimentFailed(f"{self.name}: {error}") from error
            if event["event"] == "end":
                return
            yield event

    def close(self) -> None:
        """End the process and its servers."""
        self.terminate()
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)


def events(
    name: str, asked: Row, topology: Topology, report: Row, progress: Progress
) -> Iterator[Row]:
    """Run an experiment in a process of its own; yield its events, pass them to `progress`.

    The report gets the versions of the servers and, in `missing`, why some are missing. Without
    such a key, raise ExperimentFailed if the experiment needs them.
    """
    with Experiment(name, asked, topology) as experiment:
        for event in experiment.events():
            progress(event)
            if event["event"] == "versions":
                report["versions"] = report.get("versions", {}) | event["versions"]
            elif event["event"] == "stores" and "missing" in report:
                report["missing"] |= event["missing"]
            elif event["event"] == "stores" and event["missing"] and not topology.runs_without:
                raise ExperimentFailed("; ".join(event["missing"].values()))
            yield event


class Command(ABC):
    """An experiment as its command runs it. The options are those of `params`."""

    params: type[Params]
    files: Mapping[str, str] = {}
    """By suffix: the meaning of a file that the option of this name writes."""
    part: str = ""
    """The markers of the page that --write updates."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        self.params.add_options(parser)
        for suffix, meaning in self.files.items():
            add_file(parser, suffix, meaning)
        if self.part:
            add_file(parser, "write", f"also write it to FILE, between the markers {self.part}")

    def handle(self, terminal: Terminal, **options: Any) -> int:
        """Run the experiment of a command's options; return its exit code."""
        return self.conduct(terminal, self.params.of(options), **options)

    def conduct(
        self, terminal: Terminal, asked: Any, *, write: Path | None = None, **options: Any
    ) -> int:
        """Run the experiment and write its report; return 1 unless it is ok."""
        files = {suffix: options[suffix] for suffix in self.files if options[suffix]}
        for option, file in files.items():  # before a run that may take minutes
            check_file(option, file)
        check_file("write", write, self.part)
        with terminal.bar() as bar:
            report = self.run(asked, bar)
        is_ok = self.is_ok(report)
        if write and is_ok:
            self.write(report, write)
        terminal.show(report, self.describe)
        for suffix, file in files.items():
            file.write_bytes(self.as_file(report, suffix))
        return 0 if is_ok else 1

    @abstractmethod
    def run(self, asked: Any, bar: Bar) -> Row:
        """Return the report; `asked` is one of `params`."""

    def is_ok(self, report: Row) -> bool:
        """Return True if every result is as expected."""
        return bool(report["verdict"] == "ok")

    @abstractmethod
    def describe(self, terminal: Terminal, report: Row) -> None:
        """Print the report for people."""

    def as_file(self, report: Row, suffix: str) -> bytes:
        """Return the contents of a file of one of `files`."""
        raise NotImplementedError

    def write(self, report: Row, page: Path) -> None:
        """Write the report between the markers of a page."""
        marked.write(page, self.part, self.markdown(report))

    def markdown(self, report: Row) -> str:
        """Return what `write` writes."""
        raise NotImplementedError
