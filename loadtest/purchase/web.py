"""The shop under its production server, for as long as a benchmark takes."""

import os
import sys
from pathlib import Path

from loadtest.processes import HOST, Server

THREADS = 8
"""Of each process, as deployed."""
_TICKS = os.sysconf("SC_CLK_TCK")


class Web(Server):
    """gunicorn with the environment of this process, as the Dockerfile and the demo start it."""

    program = "gunicorn gthread"

    def __init__(self, processes: int) -> None:
        super().__init__()
        self.processes = processes

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/"

    @property
    def about(self) -> str:
        """What it is, in a word or two."""
        return f"{self.program} {self.processes} x {THREADS}"

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "gunicorn", "shop.wsgi", "--bind", f"{HOST}:{self.port}"]
        command += ["--worker-class", "gthread", "--threads", str(THREADS)]
        return [*command, "--workers", str(self.processes), "--no-control-socket", *self.config]

    def answers(self) -> bool:
        return b" 200 " in self.ask(b"GET /livez HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")

    def cpu(self) -> float:
        """Seconds that the workers have computed so far."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return sum(map(_cpu_of, children))


class Granian(Web):
    """The same shop under granian, whose network side is not Python's."""

    program = "granian wsgi"

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "granian", "--interface", "wsgi", "--host", HOST]
        command += ["--port", str(self.port), "--workers", str(self.processes)]
        command += ["--blocking-threads", str(THREADS), "--no-ws", "--log-level", "warning"]
        return [*command, *self.config, "shop.wsgi:application"]


def _cpu_of(pid: str) -> float:
    # After the name, which may contain anything: state, then eleven more, then user and system.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
