"""Celery workers and beats that run `jobs.app`, on the stores of the environment."""

import os
import signal
import sys
from collections import Counter
from pathlib import Path

from django.db import connection

from devservers import Server
from devservers.base import injected_faults
from tests.loadtest.resilience.jobs import READY

ROOT = Path(__file__).resolve().parents[4]


def create_effects() -> None:
    """Create the table that the tasks write."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE job_effect (task VARCHAR(20) NOT NULL, "
            "scheduled_for VARCHAR(40) NOT NULL, attempt INTEGER NOT NULL)"
        )


def effects(task: str) -> Counter[str]:
    """Return the number of effects by scheduled time of a task."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT scheduled_for FROM job_effect WHERE task = %s", [task])
        return Counter(when for (when,) in cursor.fetchall())


class Machine(Server):
    """One worker with one child, or one beat; signals go to all of its processes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.name = f"{kind}-{self.port}"
        self._read_from = 0

    @property
    def url(self) -> str:
        """Return the node name."""
        return f"{self.name}@localhost"

    def command(self) -> list[str]:
        """Return the command line."""
        command = [sys.executable, "-m", "celery", "-q", "--workdir", str(ROOT)]
        command += ["-A", "tests.loadtest.resilience.jobs.app", self.kind, "-l", "INFO"]
        if self.kind == "worker":
            command += ["-c", "1", "-n", self.url]
            command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        return command

    def launch(self) -> None:
        """Start the process unless it runs."""
        if not self.is_running:
            self._read_from = self.log.stat().st_size if self.log.exists() else 0
            super().launch()

    def is_ready(self) -> bool:
        """Return True once the server is ready."""
        with self.log.open(errors="replace") as log:
            log.seek(self._read_from)
            return READY in log.read()

    def kill_child(self) -> None:
        """Kill the child that executes a worker's tasks."""
        (pid,) = self.children()
        os.kill(pid, signal.SIGKILL)
        injected_faults["Machine child killed"] += 1

    def _signal(self, how: signal.Signals) -> None:
        if self.is_running:
            # SIGTERM goes to the main process only: it ends its children itself.
            (os.kill if how == signal.SIGTERM else os.killpg)(self.pid, how)
