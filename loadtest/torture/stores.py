"""The private servers of a backend, and the processes that use them through links of their own."""

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import devservers
from devservers import HOST, Server, ZooKeeper, start_all, stop_all
from devservers.faults.proxy import Proxy
from devservers.faults.worker import WorkerProcess
from devservers.temporary import temporary_directory
from loadtest.load.stores import private_environ
from loadtest.torture.plan import DATABASES, NODE, PROCESSES, TTL, Store

COMMANDS = "loadtest.torture.workload:Commands"
OPERATOR = 0
"""The number of the process that switches the policy, and asks for the locks at the end."""
OTHER = "other"
"""The alias of the backend that a switch changes to: the table of the same database."""


@dataclass
class Link:
    """A process's connections to the servers, one proxy for each."""

    proxies: list[Proxy] = field(default_factory=list)


class Stores:
    """The servers, links and processes of the runs of one backend, until the block ends."""

    def __init__(
        self, store: Store, *, commands: str = COMMANDS, env: Mapping[str, str] | None = None
    ) -> None:
        self.store = store
        self._commands, self._env = commands, dict(env or {})
        self._stack = ExitStack()
        self.servers: list[Server] = []
        self.links: list[Link] = []
        self.workers: dict[int, WorkerProcess] = {}

    def __enter__(self) -> Self:
        with self._stack:
            self.folder = temporary_directory("torture")
            self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._start_servers()
            self.links = [
                Link([self._stack.enter_context(Proxy(one.port)) for one in self.servers])
                for _ in range(PROCESSES + 1)
            ]
            self._stack.callback(self._end_workers)
            for number in range(PROCESSES + 1):
                self.worker(number)
            self.worker(OPERATOR).call("migrate")
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def _start_servers(self) -> None:
        name = self.store.server
        if name == "ZooKeeper":
            self.servers += ZooKeeper(self.store.size).nodes
        elif name:
            self.servers += [getattr(devservers, name)() for _ in range(self.store.size)]
        start_all(self.servers)
        self._stack.callback(stop_all, self.servers)

    def _end_workers(self) -> None:
        for worker in self.workers.values():
            worker.close()

    def worker(self, number: int) -> WorkerProcess:
        """Return a process; start it if there is none or it was killed."""
        found = self.workers.get(number)
        if found is None or not found.is_alive:
            env = private_environ(self.folder) | {"LOG_LEVEL": "CRITICAL"} | self._env
            if self.store.server in DATABASES:
                env["DATABASE_URL"] = self._url(number, 0)
            found = self.workers[number] = WorkerProcess(self._commands, env)
        return found

    def locks(self, number: int) -> dict[str, dict[str, Any]]:
        """Return LOCKS of a process."""
        entry: dict[str, Any] = {"BACKEND": self.store.backend, "TTL": TTL}
        entry["OPTIONS"] = self.store.options
        match self.store.server:
            case "Redis" if self.store.size > 1:
                entry["LOCATION"] = [self._url(number, of) for of in range(self.store.size)]
            case "Redis":
                entry["LOCATION"] = self._url(number, 0)
            case "ZooKeeper":
                ports = [proxy.port for proxy in self.links[number].proxies]
                entry["LOCATION"] = ",".join(f"{HOST}:{port}" for port in ports)
        other = {"BACKEND": f"{NODE}.database.DatabaseBackend", "TTL": TTL}
        return {"torture": entry, OTHER: other}

    def _url(self, number: int, of: int) -> str:
        server, proxy = self.servers[of], self.links[number].proxies[of]
        return server.url.replace(f":{server.port}", f":{proxy.port}")
