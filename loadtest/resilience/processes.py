"""The processes of a shop, with the commands of docker-compose.yml."""

import sys
from pathlib import Path

from devservers import Server
from loadtest.bench.purchase.web import WebServer
from shop.celery import app

ROOT = Path(__file__).resolve().parents[2]


def _as_deployed(server: Server, *variables: str) -> list[str]:
    """Return the words that run a command in the image's entrypoint, with folders of its own."""
    own = [f"PROMETHEUS_MULTIPROC_DIR={server.folder / 'metrics'}", f"TMPDIR={server.folder}"]
    return ["env", *own, *variables, "sh", str(ROOT / "deploy/entrypoint.sh")]


class Web(WebServer):
    """The web server."""

    def command(self) -> list[str]:
        return [*_as_deployed(self), *super().command()]


class Celery(Server):
    """A Celery worker with one child, or a beat."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.kind = name.partition(" ")[0]

    @property
    def url(self) -> str:
        """Return the node name."""
        return f"{self.kind}-{self.port}@localhost"

    def command(self) -> list[str]:
        # Only a worker serves metrics; beat ignores the port.
        words = [*_as_deployed(self, f"METRICS_PORT={self.port}"), sys.executable, "-m", "celery"]
        words += ["-q", "--workdir", str(ROOT), "-A", "shop", self.kind, "-n", self.url]
        return [*words, *(["-c", "1"] if self.kind == "worker" else ["--enable-remote-control"])]

    def is_ready(self) -> bool:
        return bool(app.control.ping(destination=[self.url], timeout=0.5))


class Consumer(Server):
    """A consumer of reservations."""

    @property
    def url(self) -> str:
        """Return the address of the metrics."""
        return f"http://localhost:{self.port}/metrics"

    @property
    def _heartbeat(self) -> Path:
        return self.folder / "heartbeat"

    def command(self) -> list[str]:
        self._heartbeat.unlink(missing_ok=True)
        variables = f"METRICS_PORT={self.port}", f"HEARTBEAT_FILE={self._heartbeat}"
        words = [*_as_deployed(self, *variables), sys.executable, str(ROOT / "manage.py")]
        return [*words, "consume_orders"]

    def is_ready(self) -> bool:
        return self._heartbeat.exists()
