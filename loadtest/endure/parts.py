"""The processes of a shop, started as docker-compose.yml starts them."""

import sys
from pathlib import Path

from loadtest.processes import Server
from loadtest.purchase import web
from shop.celery import app

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"consume_orders": "consumer", "serve_health": "health"}
"""What the command line of a process that a worker starts tells of it."""


def _as_deployed(server: Server, *variables: str) -> list[str]:
    """Behind the image's entrypoint, with figures of its own."""
    figures = f"PROMETHEUS_MULTIPROC_DIR={server.folder / 'metrics'}"
    return ["env", figures, *variables, "sh", str(ROOT / "deploy/entrypoint.sh")]


class Web(web.Web):
    """gunicorn."""

    def command(self) -> list[str]:
        return [*_as_deployed(self), *super().command()]


class Celery(Server):
    """A worker with one child, or a beat."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.kind = name.partition(" ")[0]

    @property
    def url(self) -> str:
        return f"{self.kind}-{self.port}@localhost"

    def command(self) -> list[str]:
        # Beat serves nothing, and does not look at the port.
        words = [*_as_deployed(self, f"WORKER_PORT={self.port}"), sys.executable, "-m", "celery"]
        words += ["-q", "--workdir", str(ROOT), "-A", "shop", self.kind, "-n", self.url]
        return [*words, *(["-c", "1"] if self.kind == "worker" else ["--enable-remote-control"])]

    def answers(self) -> bool:
        return bool(app.control.ping(destination=[self.url], timeout=0.5))


def processes_of(server: Server) -> dict[str, int]:
    """It and those that it has started, by name."""
    found = {server.name: server.pid}
    for number, pid in enumerate(server.children(), 1):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        kind = next((KINDS[word] for word in words if word in KINDS), f"child {number}")
        found[f"{server.name} {kind}"] = pid
    return found
