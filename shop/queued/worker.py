"""A Celery worker brings consumers with it, as processes beside its pool.

Not as a task, which would occupy the pool and end with the broker's connection; not as a thread,
since the pool's processes are forked from this one.
"""

import os
import subprocess
import sys
from typing import Any

from celery import bootsteps

WATCH = 1.0
"""Seconds after which a consumer that died is started again."""
STOP = 2.0


class Consumers(bootsteps.StartStopStep):  # type: ignore[misc]
    """QUEUED_CONSUMERS processes that write the orders of queued sales."""

    requires = {"celery.worker.components:Timer"}

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.entry: Any = None

    def start(self, parent: Any) -> None:
        """With the worker."""
        from django.conf import settings  # not known yet when Celery is imported

        self.processes = [self._spawn() for _ in range(settings.QUEUED_CONSUMERS)]
        if self.processes:
            self.entry = parent.timer.call_repeatedly(WATCH, self._watch)

    def _spawn(self) -> subprocess.Popen[bytes]:
        from django.conf import settings

        command = [sys.executable, "-m", "django", "consume_orders", "--parent", str(os.getpid())]
        return subprocess.Popen(command, cwd=settings.BASE_DIR, stdin=subprocess.DEVNULL)

    def _watch(self) -> None:
        self.processes = [
            self._spawn() if process.poll() is not None else process for process in self.processes
        ]

    def stop(self, parent: Any) -> None:
        """Also when the worker is told to end at once; a batch under way is finished."""
        if self.entry is not None:
            self.entry.cancel()
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(STOP)
            except subprocess.TimeoutExpired:
                process.kill()
        self.processes = []

    terminate = stop
