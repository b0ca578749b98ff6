"""The private servers of a backend, and the processes that use them through links of their own."""

import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Self

import devservers
from devservers import HOST, Redis, Server, ZooKeeper, start_all, stop_all
from devservers.faults.clock import Clock
from devservers.faults.full_disk import FullDisk
from devservers.faults.proxy import Proxy
from devservers.faults.worker import WorkerProcess
from devservers.programs import installed
from devservers.temporary import temporary_directory
from loadtest.load.stores import private_environ
from loadtest.torture.plan import DATABASE, DATABASES, PROCESSES, STORES, Store

COMMANDS = "loadtest.torture.stock:ShopCommands"
OPERATOR = 0
"""The number of the process that switches the policy, and asks for the locks at the end."""
START_SECONDS = 240.0
"""Seconds in which a process must start; on an overloaded machine, many times what it needs."""
CONNECTIONS = 100
"""Clients that a server accepts."""
CONFIG = {
    "Redis": ["--maxclients", f"{CONNECTIONS}"],
    "MariaDb": [f"--max-connections={CONNECTIONS}"],
    "PostgreSql": [f"--max_connections={CONNECTIONS}"],
}
WITH_DISKS = {"Redis": "", "MariaDb": "", "PostgreSql": "base"}
"""Directories that can be full: PostgreSQL ends if it cannot extend its log."""
OTHER = "other"
"""The alias of the backend that a switch changes to: a table, or Redis if the first is SQL."""


class LinkProxy(Proxy):
    """A proxy that can delay a COMMIT, or send each request again on a connection of its own."""

    duplicates = False
    duplicated = 0
    commit_delay = 0.0
    """Seconds by which the next COMMIT is delayed, once."""
    late_commits = 0

    def _send_request(self, source: socket.socket, sink: socket.socket, data: bytes) -> None:
        if self.commit_delay and b"COMMIT" in data:
            delay, self.commit_delay = self.commit_delay, 0.0
            self.late_commits += 1
            time.sleep(delay)
        super()._send_request(source, sink, data)
        if self.duplicates:
            self.duplicated += 1
            with suppress(OSError), socket.create_connection(sink.getpeername(), 1) as again:
                again.sendall(data)
                again.shutdown(socket.SHUT_WR)
                while again.recv(65536):
                    pass


class Stores:
    """The servers, links and processes of the runs of one backend, until the block ends."""

    def __init__(
        self, store: Store, *, commands: str = COMMANDS, env: Mapping[str, str] | None = None
    ) -> None:
        self.store = store
        self._commands, self._env = commands, dict(env or {})
        self.stack = ExitStack()
        self.servers: list[Server] = []
        self.links: list[list[LinkProxy]] = []
        """By process: its proxy of each server."""
        self.clocks: dict[int, Clock] = {}
        self.disks: dict[int, FullDisk] = {}
        self.workers: dict[int, WorkerProcess] = {}

    def __enter__(self) -> Self:
        with self.stack:
            self.folder = temporary_directory("torture")
            self.stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._start_servers()
            self.links = [
                [self.stack.enter_context(LinkProxy(one.port)) for one in self.servers]
                for _ in range(PROCESSES + 1)
            ]
            self.stack.callback(self._end_workers)
            for number in range(PROCESSES + 1):
                self.worker(number)
            self.worker(OPERATOR).send("migrate", apps=[] if self.store.shop else ["locking"])
            self.worker(OPERATOR).receive(START_SECONDS)
            self.stack = self.stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stack.close()

    def _start_servers(self) -> None:
        name = self.store.server
        if name == "ZooKeeper":
            self.servers += ZooKeeper(self.store.size).nodes
        elif name:
            config = (*CONFIG.get(name, ()), *(("--appendonly", "yes") if self.store.shop else ()))
            kind = getattr(devservers, name)
            self.servers += [kind(config=config) for _ in range(self.store.size)]
        if self.store.shop in DATABASES:
            self.servers.append(getattr(devservers, self.store.shop)())
        for number, server in enumerate(self.servers):
            self.control(number, server)
        self._other = Redis() if self.is_sql else None
        if self._other:
            self.stack.enter_context(self._other)
        start_all(self.servers)
        self.stack.callback(stop_all, self.servers)

    def control(self, number: int, server: Server) -> None:
        """Give a server that has not started a disk and a clock of its own."""
        kind = type(server).__name__
        if kind in WITH_DISKS and installed("cc"):
            self.disks[number] = FullDisk(server, WITH_DISKS[kind])
        if isinstance(server, Redis) and installed("cc"):
            self.clocks[number] = Clock(server.folder)
            self.clocks[number].drive(server)

    @property
    def is_sql(self) -> bool:
        """Return whether the backend uses a database, the processes' own."""
        return self.store.backend.endswith(("DatabaseBackend", "SessionBackend"))

    def _end_workers(self) -> None:
        for worker in self.workers.values():
            worker.close()

    def worker(self, number: int) -> WorkerProcess:
        """Return a process; start it if there is none or it was killed."""
        found = self.workers.get(number)
        if found is None or not found.is_alive:
            env = private_environ(self.folder) | {"LOG_LEVEL": "CRITICAL"} | self._env
            if self.store.server in DATABASES:
                env["DATABASE_URL"] = self.servers[0].url
            if self.store.shop:
                ports = [proxy.port for proxy in self.links[number]]
                env |= {"REDIS_URL": self._url(0, ports[0]), "PURCHASES_PER_GRANT": "8"}
                env["DATABASE_TIMEOUT"] = "20" if number == OPERATOR else "2"
                if self.store.shop in DATABASES:
                    env["DATABASE_URL"] = self._url(DATABASE, ports[DATABASE])
            log = self.folder / f"process-{number}.log"
            found = self.workers[number] = WorkerProcess(self._commands, env, log=log)
        return found

    def settings(self, number: int, ttl: float, *, linked: bool) -> dict[str, Any]:
        """Return LOCKS of a process, and the port of its database, through its links or not."""
        entry: dict[str, Any] = {"BACKEND": self.store.backend, "TTL": ttl}
        entry["OPTIONS"] = self.store.options
        ends: Sequence[Proxy | Server] = self.links[number] if linked else self.servers
        urls = [self._url(of, end.port) for of, end in enumerate(ends)]
        match self.store.server:
            case "Redis" if self.store.size > 1:
                entry["LOCATION"] = urls
            case "Redis" if not self.store.backend.endswith("NoneBackend"):
                entry["LOCATION"] = urls[0]
            case "ZooKeeper":
                entry["LOCATION"] = ",".join(f"{HOST}:{end.port}" for end in ends)
        other: dict[str, Any] = {"BACKEND": STORES["database"].backend, "TTL": ttl}
        if self._other:
            other |= {"BACKEND": STORES["redis"].backend, "LOCATION": self._other.url}
        port = ends[0].port if self.store.server in DATABASES else None
        return {"locks": {"torture": entry, OTHER: other}, "port": port}

    def _url(self, of: int, port: int) -> str:
        server = self.servers[of]
        return server.url.replace(f":{server.port}", f":{port}")
