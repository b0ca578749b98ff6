"""An experiment in a process of its own, whose environment leads to private servers."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from devservers.faults.waiting import FaultFailed
from devservers.faults.worker import WorkerProcess
from devservers.temporary import temporary_directory
from loadtest.kernel.topology import Topology, private_environ

Event = dict[str, Any]


class ExperimentFailed(RuntimeError):
    """An experiment ended with an unexpected error; the message ends with its log."""


class Experiment(WorkerProcess):
    """`python -m loadtest MODULE`: it starts the servers, runs the experiment and sends events."""

    def __init__(self, name: str, asked: dict[str, Any], topology: Topology) -> None:
        self.name, self._folder = name, temporary_directory("lab")
        environ = private_environ(self._folder) | dict(topology.environ)
        super().__init__(
            name, environ, log=self._folder / "log", module="loadtest", cwd=self._folder
        )
        self.write_line(json.dumps({"asked": asked, "topology": asdict(topology)}))

    def events(self) -> Iterator[Event]:
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
