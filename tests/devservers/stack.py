"""docker-compose.yml as processes: its commands, environments and health checks.

The names of its services become addresses of this machine, and the stores are those of the tests.
"""

import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from socketserver import BaseRequestHandler, UDPServer
from typing import Any, Self

from podman_compose import rec_subs

from devservers import (
    HOST,
    MariaDb,
    Nginx,
    Redis,
    Server,
    ZooKeeper,
    reserve_port,
    start_all,
    stop_all,
)
from devservers.temporary import temporary_directory
from tests import programs
from tools.containers.containers import ROOT, defaults, services_of

PATIENCE = 120.0


class Names(UDPServer):
    """A name server like Docker's: returns the addresses of all containers of a service."""

    def __init__(self, addresses: Callable[[str], list[str]]) -> None:
        super().__init__((HOST, 0), BaseRequestHandler)
        self.addresses = addresses

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer one query for the A records of a name without dots."""
        query, connection = request
        end = 13 + query[12]
        found = self.addresses(query[13:end].decode())
        head = query[:2] + struct.pack(">5H", 0x8180, 1, len(found), 0, 0) + query[12 : end + 5]
        record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 5, 4)
        answers = b"".join(record + socket.inet_aton(address) for address in found)
        connection.sendto(head + answers, client_address)

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def url(self) -> str:
        """Return its address, as nginx expects it."""
        return f"{HOST}:{self.server_address[1]}"


class Part(Server):
    """One process of a service."""

    def __init__(self, stack: "Stack", service: str, number: int = 1) -> None:
        super().__init__()
        self.stack, self.service, self.name = stack, service, f"{service}-{number}"
        self.host = HOST
        self.env = {
            **stack.environment(service),
            "HOME": str(self.folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SHOP_VAR": str(stack.folder),
            "PYTHONUNBUFFERED": "1",
            "FORWARDED_ALLOW_IPS": "*",
            "PROMETHEUS_MULTIPROC_DIR": str(self.folder / "metrics"),
            "METRICS_PORT": str(self.port),
            "HEARTBEAT_FILE": str(self.folder / "heartbeat"),
            "LOG_LEVEL": "WARNING",
        }

    @property
    def url(self) -> str:
        return f"{self.host}:{self.stack.web_port if self.service == 'web' else self.port}"

    def command(self) -> list[str]:
        words = self.stack.command_of(self.service)
        if self.service == "web":  # a new address each time, as in Docker
            self.host = f"127.0.0.{next(self.stack.last_bytes)}"
            self.env["BIND"] = self.url
            self.env["ALLOWED_HOSTS"] += f",{self.host}"
        if words[0] == "celery":  # Docker gives every container a host name of its own
            words += ["-n", f"{self.name}@%h"]
        variables = [f"{name}={value}" for name, value in self.env.items()]
        return ["env", "-i", f"--chdir={ROOT}", *variables, "sh", "deploy/entrypoint.sh", *words]

    def is_ready(self) -> bool:
        words = self.stack.check(self.service)
        for theirs, ours in (("celerybeat@", f"{self.name}@"), (f"{HOST}:8000", self.url)):
            words = [word.replace(theirs, ours) for word in words]
        return passes(words, self.env)

    def run(self, *words: str) -> str:
        """Run a command as `docker compose exec` does, and return its output."""
        return programs.output(*words, cwd=ROOT, env=self.env)

    def exit_code(self) -> int:
        """Wait for the end of the process."""
        assert self._process is not None
        return self._process.wait(PATIENCE)


class Stack(ExitStack):
    """All services of the profile `full` until the block ends, with nginx in front."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = temporary_directory("stack")
        self.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.web_port, mark = reserve_port()
        self.callback(mark.close)
        self.last_bytes = count(2)
        names = self.enter_context(Names(lambda name: [one.host for one in self.of(name)]))
        self.nginx = Nginx(web=f"web:{self.web_port}", resolver=names.url)
        self.callback(self.nginx.stop)
        self.variables = defaults() | {"PORT": str(self.nginx.port)}
        self.services: dict[str, Any] = rec_subs(services_of("full"), self.variables)
        self.addresses: dict[str, str] = {}
        """Of the stores, by their names in the file."""
        self.parts: dict[str, Part] = {}

    def __enter__(self) -> Self:
        try:
            self._start_stores()
            self._start_shop()
        except BaseException:
            self.close()
            raise
        return self

    def of(self, service: str) -> list[Part]:
        """Return the parts of a service."""
        return [part for part in self.parts.values() if part.service == service]

    def _start_stores(self) -> None:
        images = {name: one.get("image", "") for name, one in self.services.items()}
        nodes = [name for name, image in images.items() if image.startswith("zookeeper:")]
        mariadb, ensemble = MariaDb(), ZooKeeper(len(nodes))
        redis = {
            f"{name}:6379": Redis(config=self.command_of(name)[1:])
            for name, image in images.items()
            if image.startswith("redis:")
        }
        zookeeper = dict(zip([f"{name}:2181" for name in nodes], ensemble.nodes, strict=True))
        stores = {"mariadb:3306": mariadb, **redis, **zookeeper}
        self.callback(stop_all, stores.values())
        start_all(stores.values())
        self.addresses = {name: f"{HOST}:{server.port}" for name, server in stores.items()}
        user = "GRANT ALL ON shop.* TO shop@'%' IDENTIFIED BY '{MARIADB_PASSWORD}'"
        mariadb.execute(user.format(**self.environment("mariadb")))

    def _start_shop(self) -> None:
        migrate = Part(self, "migrate")
        self.callback(migrate.stop)
        static = ["python", "manage.py", "collectstatic", "--noinput"]
        for words in (static, self.command_of("migrate")):
            migrate.run("sh", "deploy/entrypoint.sh", *words)
        for service in ("web", "worker", "consumer", "beat"):
            for number in range(1, self.services[service]["deploy"]["replicas"] + 1):
                part = Part(self, service, number)
                self.parts[part.name] = part
        self.callback(stop_all, self.parts.values())
        for part in self.parts.values():
            part.launch()
        for part in self.parts.values():
            part.wait_ready(PATIENCE)
        self.nginx.start()

    def environment(self, service: str) -> dict[str, str]:
        """Return the environment of a service, with addresses of this machine."""
        given = self.services[service].get("environment", {})
        return {variable: self._local(str(value)) for variable, value in given.items()}

    def command_of(self, service: str) -> list[str]:
        """Return the command of the service, or that of the image."""
        command = self.services[service].get("command")
        if command is None:
            image = (ROOT / "Dockerfile").read_text()
            command = json.loads(re.findall(r"^CMD (.+)$", image, re.MULTILINE)[-1])
        return [self._local(word) for word in command]

    def check(self, service: str) -> list[str]:
        """Return the health check of a service as a command."""
        how, *words = self.services[service]["healthcheck"]["test"]
        return words if how == "CMD" else ["sh", "-c", *words]

    def _local(self, text: str) -> str:
        for name, address in self.addresses.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}\b", address, text)
        return text


def passes(command: list[str], env: dict[str, str]) -> bool:
    """Return whether a health check succeeds, and in time."""
    try:
        done = subprocess.run(command, cwd=ROOT, env=env, timeout=30, capture_output=True)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
