"""`make stack`: run docker-compose.yml as processes of this machine, without a container engine.

    PORT=8000 .venv/bin/python tools/stack.py

Commands, environments and health checks are those of the file, and its variables are read from the
environment, as by Compose. This module replaces Docker: names become addresses, the servers are
those of the tests, and processes that end are restarted. Each start begins without data, and the
end removes all data.
"""

import json
import os
import re
import secrets
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from socketserver import BaseRequestHandler, UDPServer
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from podman_compose import rec_subs  # noqa: E402
from ruamel.yaml import YAML  # noqa: E402

from devservers import (  # noqa: E402
    HOST,
    MariaDb,
    Nginx,
    Redis,
    ServerError,
    ZooKeeper,
    reserve_port,
    start_all,
    stop_all,
)
from tools.supervisor import (  # noqa: E402
    Family,
    check_port,
    chosen_port,
    exit_on_signals,
    farewell,
    say,
)

READY_SECONDS = 90.0
CHECK_SECONDS = 30.0


class StackError(Exception):
    """The stack cannot start; the message is one sentence."""


def defaults(port: int) -> dict[str, str]:
    """Return the variables of docker-compose.yml for a trial of all services, with new secrets."""
    return {
        "COMPOSE_PROFILES": "full",
        "PAYMENT_PROVIDER": "none",
        "HTTPS": "0",
        "PORT": str(port),
        "SECRET_KEY": secrets.token_hex(32),
        "MYSQL_PASSWORD": secrets.token_hex(16),
        "REDIS_PASSWORD": secrets.token_hex(16),
        "SEED_PASSWORD": secrets.token_urlsafe(9),
    }


def services_of(profiles: str) -> dict[str, dict[str, Any]]:
    """Return the services of docker-compose.yml in these profiles, and those in none."""
    services = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]
    asked = {*profiles.split(","), None} - {""}
    return {
        name: service
        for name, service in services.items()
        if asked & set(service.get("profiles", [None]))
    }


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


class Stack(Family):
    """The services of the selected profiles; its parts are the processes of the shop."""

    def __init__(self, port: int = 0, variables: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.port = port or self._reserve()
        self._web_port = self._reserve()
        self._last_bytes = count(2)
        self.variables = {**defaults(self.port), **(variables or {})}
        try:
            chosen = services_of(self.variables["COMPOSE_PROFILES"])
            self.services = rec_subs(chosen, self.variables)
        except ValueError as error:
            raise StackError(f"docker-compose.yml: {error}.") from None
        self.addresses: dict[str, str] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="seckill-stack-"))
        self.callback(shutil.rmtree, self.folder, ignore_errors=True)

    def _reserve(self) -> int:
        port, mark = reserve_port()
        self.callback(mark.close)
        return port

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def up(self) -> None:
        """Start everything, in the order that Docker starts it in."""
        self._start_stores()
        self._prepare()
        for name in ("web", "worker", "consumer", "beat"):
            for number in range(1, self.services[name]["deploy"]["replicas"] + 1):
                self._place(name, number)
        for name in self.commands:
            self.start(name)
        names = self.enter_context(Names(self._hosts))
        self.callback(names.shutdown)
        threading.Thread(target=names.serve_forever, daemon=True).start()
        asked = f"{HOST}:{names.server_address[1]}"
        self.enter_context(Nginx(web=f"web:{self._web_port}", resolver=asked, port=self.port))

    def named(self, service: str) -> list[str]:
        """Return the parts of a service: web-1, web-2."""
        return [name for name in self.commands if name.rpartition("-")[0] == service]

    def _hosts(self, service: str) -> list[str]:
        return [self.addresses[name].partition(":")[0] for name in self.named(service)]

    def _start_stores(self) -> None:
        mariadb = MariaDb()
        self.callback(mariadb.stop)
        names = [name for name in self.services if self._image(name).startswith("redis:")]
        redis = {name: Redis(config=self._command(name)[1:]) for name in names}
        self.callback(stop_all, redis.values())
        start_all([mariadb, *redis.values()])
        self.addresses["mariadb:3306"] = f"{HOST}:{mariadb.port}"
        self.addresses |= {f"{name}:6379": f"{HOST}:{redis[name].port}" for name in names}
        nodes = [name for name in self.services if self._image(name).startswith("zookeeper:")]
        if nodes:
            ensemble = self.enter_context(ZooKeeper(len(nodes)))
            urls = [node.url for node in ensemble.nodes]
            self.addresses |= dict(zip([f"{name}:2181" for name in nodes], urls, strict=True))
        self._make_user(mariadb)

    def _image(self, name: str) -> str:
        return str(self.services[name].get("image", ""))

    def _make_user(self, mariadb: MariaDb) -> None:
        import MySQLdb

        made = self._environment("mariadb")
        connection = MySQLdb.connect(host=HOST, port=mariadb.port, user="root")
        with connection.cursor() as cursor:
            cursor.execute(
                f"GRANT ALL ON {made['MARIADB_DATABASE']}.* TO %s@'%%' IDENTIFIED BY %s",
                (made["MARIADB_USER"], made["MARIADB_PASSWORD"]),
            )
        connection.close()

    def _local(self, text: object) -> str:
        local = str(text)
        for name, address in self.addresses.items():
            local = re.sub(rf"(?<![\w.-]){re.escape(name)}\b", address, local)
        return local

    def _environment(self, name: str) -> dict[str, str]:
        given = self.services[name].get("environment", {})
        return {variable: self._local(value) for variable, value in given.items()}

    def _part_environment(self, name: str, service: str) -> dict[str, str]:
        """Return the environment of a part: that of the service and of the image."""
        own = self._environment(service)
        return {
            **{key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ},
            **own,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SHOP_VAR": str(self.folder),
            "PYTHONUNBUFFERED": "1",
            "FORWARDED_ALLOW_IPS": "*",
            "PROMETHEUS_MULTIPROC_DIR": str(self.folder / name / "metrics"),
            "LOG_LEVEL": "WARNING",
        }

    def _prepare(self) -> None:
        for name, command in (
            ("static", ["python", "manage.py", "collectstatic", "--noinput"]),
            ("migrate", self._command("migrate")),
        ):
            done = subprocess.run(
                ["sh", "deploy/entrypoint.sh", *command],
                cwd=ROOT,
                env=self._part_environment(name, "migrate"),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if done.returncode:
                raise StackError(f"{name} failed:\n{done.stdout[-2000:]}")

    def _command(self, service: str) -> list[str]:
        """Return the command of the service, or that of the image."""
        command = self.services[service].get("command")
        if command is None:
            image = (ROOT / "Dockerfile").read_text()
            command = json.loads(re.findall(r"^CMD (.+)$", image, re.MULTILINE)[-1])
        return [self._local(word) for word in command]

    def _place(self, service: str, number: int) -> None:
        name = f"{service}-{number}"
        command, env = self._command(service), self._part_environment(name, service)
        if service != "web":
            port = self._reserve()
            self.addresses[name] = f"{HOST}:{port}"
            env["METRICS_PORT"] = str(port)
            env["HEARTBEAT_FILE"] = str(self.folder / name / "heartbeat")
        if command[0] == "celery":
            # Docker gives every container a host name of its own.
            command += ["-n", f"{name}@%h"]
        self.commands[name] = ["sh", "deploy/entrypoint.sh", *command], env

    def write_manage(self) -> Path:
        """Write a script that runs manage.py as `docker compose exec web python manage.py` does."""
        env = {**self.commands["web-1"][1], "LOG_FORMAT": "line"}
        del env["PROMETHEUS_MULTIPROC_DIR"]  # each call would leave a file of figures behind
        exports = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
        script = self.folder / "manage"
        script.write_text(
            "\n".join([*exports, f'cd {shlex.quote(str(ROOT))} && exec python manage.py "$@"', ""])
        )
        return script

    def start(self, name: str) -> None:
        """Start a part; a web process gets a new address each time, as in Docker."""
        _, env = self.commands[name]
        if name in self.named("web"):
            host = f"127.0.0.{next(self._last_bytes)}"
            self.addresses[name] = env["BIND"] = f"{host}:{self._web_port}"
            env["ALLOWED_HOSTS"] += f",{host}"
        super().start(name)

    def checks(self) -> Iterator[tuple[str, list[str], dict[str, str]]]:
        """Yield the health check of each part: name, command, environment."""
        for name in [*self.commands, "proxy"]:
            service = name.partition("-")[0]
            how, *words = self.services[service]["healthcheck"]["test"]
            inner = {"web": "8000", "proxy": "8080"}.get(service, "")
            address = f"{HOST}:{self.port}" if name == "proxy" else self.addresses[name]
            if inner:
                words = [word.replace(f"127.0.0.1:{inner}", address) for word in words]
            command = [word.replace("celerybeat@", f"{name}@") for word in words]
            env = dict(os.environ) if name == "proxy" else self.commands[name][1]
            yield name, command if how == "CMD" else ["sh", "-c", *command], env

    def wait_healthy(self, names: set[str] | None = None, seconds: float = READY_SECONDS) -> None:
        """Wait for one health check after the other; raise StackError with one that does not."""
        deadline = time.monotonic() + seconds
        for name, command, env in self.checks():
            while (names is None or name in names) and not passes(command, env):
                if time.monotonic() > deadline:
                    raise StackError(f"not healthy after {seconds:g} s: {name}")
                time.sleep(0.5)


def passes(command: list[str], env: dict[str, str]) -> bool:
    """Return whether a health check succeeds, and in time."""
    output = subprocess.DEVNULL
    with suppress(subprocess.SubprocessError):
        subprocess.run(
            command,
            cwd=ROOT,
            env=env,
            timeout=CHECK_SECONDS,
            stdout=output,
            stderr=output,
            check=True,
        )
        return True
    return False


def main() -> int:
    started = time.monotonic()
    exit_on_signals()
    port = chosen_port()
    check_port(port, "stack")
    named = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text())) - {"PORT"}
    given = {name: os.environ[name] for name in named if name in os.environ}
    say("Starting the stack of docker-compose.yml as processes ...")
    try:
        with Stack(port, given) as stack:
            stack.up()
            stack.wait_healthy()
            stack.stop_on_signals()
            seconds = time.monotonic() - started
            say(f"{len(stack.parts) + 1} parts are healthy at {stack.url} after {seconds:.1f} s.")
            password = stack.variables["SEED_PASSWORD"]
            if password:
                say(f"li, wang, zhang and amy (staff) have the password {password}.")
            say(f"manage.py: sh {stack.write_manage()} createsuperuser")
            say("Ctrl-C stops everything.")
            why = stack.supervise()
    except (StackError, ServerError, OSError) as error:
        sys.exit(f"\n{error}")
    return farewell(why)


if __name__ == "__main__":
    sys.exit(main())
