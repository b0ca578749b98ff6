"""The private servers of a backend, and the processes that use them through links of their own."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

import devservers
from devservers import Redis, Server, ZooKeeper, start_all, stop_all
from devservers.faults.proxy import Proxy
from devservers.faults.worker import WorkerProcess
from devservers.temporary import temporary_directory
from loadtest.kernel.topology import DURABLE, private_environ
from verification.torture.catalogue import ALIAS, DATABASES, OTHER, STORES, Store
from verification.torture.plan import PROCESSES

COMMANDS = "verification.torture.commands:Commands"
SWITCHER = 0
"""The number of the process that switches the policy, and asks for the locks at the end."""
START_SECONDS = 240.0
"""Seconds in which a process must start; on an overloaded machine, many times what it needs."""


class Stores:
    """The servers, links and processes of the runs of one backend, until the block ends."""

    def __init__(
        self, store: Store, *, commands: str = COMMANDS, env: Mapping[str, str] | None = None
    ) -> None:
        self.store = store
        self._commands, self._env = commands, dict(env or {})
        self.stack = ExitStack()
        self.servers: list[Server] = []
        self.links: list[list[Proxy]] = []
        """By process: its proxy of each server."""
        self.workers: dict[int, WorkerProcess] = {}

    def __enter__(self) -> Self:
        with self.stack:
            self.folder = temporary_directory("torture")
            self.stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._start_servers()
            self.links = [
                [self.stack.enter_context(Proxy(one.port)) for one in self.servers]
                for _ in range(PROCESSES + 1)
            ]
            self.stack.callback(self._end_workers)
            for number in range(PROCESSES + 1):
                self.worker(number)
            switcher = self.worker(SWITCHER)
            switcher.send("create_tables")
            switcher.receive(START_SECONDS)
            self.stack = self.stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stack.close()

    def _start_servers(self) -> None:
        for name in self.store.servers:
            config = DURABLE if self.store.shop and name == "Redis" else ()
            kind = getattr(devservers, name)
            server = ZooKeeper(1).nodes[0] if name == "ZooKeeper" else kind(config=config)
            self.servers.append(server)
        is_sql = self.store.backend.endswith(("DatabaseBackend", "SessionBackend"))
        self._other = self.stack.enter_context(Redis()) if is_sql else None
        start_all(self.servers)
        self.stack.callback(stop_all, self.servers)

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
                urls = self._urls(self.links[number])
                env |= {"REDIS_URL": urls[0], "PURCHASES_PER_GRANT": "8"}
                env["DATABASE_TIMEOUT"] = "20" if number == SWITCHER else "2"
                if self.store.shop in DATABASES:
                    env["DATABASE_URL"] = urls[-1]
            log = self.folder / f"process-{number}.log"
            found = self.workers[number] = WorkerProcess(self._commands, env, log=log)
        return found

    def settings(self, number: int, ttl: float, *, linked: bool) -> dict[str, Any]:
        """Return LOCKS of a process, and the port of its database, through its links or not."""
        store, entry = self.store, dict[str, Any]()
        ends: Sequence[Proxy | Server] = self.links[number] if linked else self.servers
        if store.server in ("Redis", "ZooKeeper") and not store.backend.endswith("NoneBackend"):
            urls = self._urls(ends)
            entry["LOCATION"] = urls if store.size > 1 else urls[0]
        entry |= {"BACKEND": store.backend, "TTL": ttl, "OPTIONS": store.options}
        other: dict[str, Any] = {"BACKEND": STORES["database"].backend, "TTL": ttl}
        if self._other:
            other |= {"BACKEND": STORES["redis"].backend, "LOCATION": self._other.url}
        port = ends[0].port if store.server in DATABASES else None
        return {"locks": {ALIAS: entry, OTHER: other}, "port": port}

    def _urls(self, ends: Sequence[Proxy | Server]) -> list[str]:
        """Return the addresses of the servers behind these ports."""
        pairs = zip(self.servers, ends, strict=True)
        return [one.url.replace(f":{one.port}", f":{end.port}") for one, end in pairs]
