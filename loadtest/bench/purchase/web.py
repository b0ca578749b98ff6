"""The shop under its production server, started for a benchmark."""

import sys
import time
from pathlib import Path

from devservers import HOST, Server

CONFIG = Path(__file__).resolve().parents[3] / "deploy" / "gunicorn_conf.py"
THREADS = 8
"""Threads of each process, as deployed."""
_CPU_CLOCK = 2
"""Linux: the clock of a process's CPU time, in nanoseconds; its statistics count 10 ms each."""


class WebServer(Server):
    """gunicorn as deployed, with the environment of this process.

    Workers are never replaced: that would close connections during a measurement.
    """

    def __init__(self, processes: int) -> None:
        super().__init__()
        self.processes = processes

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "gunicorn", "shop.wsgi", "--config", str(CONFIG)]
        command += ["--bind", f"{HOST}:{self.port}", "--workers", str(self.processes)]
        return [*command, "--max-requests", "0"]

    def is_ready(self) -> bool:
        return b" 200 " in self.send(b"GET /livez HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")

    def cpu(self) -> float:
        """Return the CPU seconds of the workers since their start."""
        return sum(time.clock_gettime(~pid << 3 | _CPU_CLOCK) for pid in self.children())
