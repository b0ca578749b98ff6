"""The private servers of an experiment: as data, and running."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from django.apps import apps
from django.conf import settings
from django.core.management import call_command

from devservers import MariaDb, PostgreSql, Redis, Server, ServerError, ZooKeeper
from devservers.base import start_all, stop_all
from devservers.faults.ensemble import Partitioned
from devservers.faults.proxy import Proxy

Resource = TypeVar("Resource")
NOWHERE = "unix:///nonexistent"
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
"""With "everysec", a Redis that is killed may lose a release that it has confirmed."""


def private_environ(folder: Path) -> dict[str, str]:
    """Return the environment of an experiment with its files in `folder`, and without servers."""
    environ = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "shop.settings.lab",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "SHOP_VAR": str(folder),
        "DATABASE_URL": f"sqlite:///{folder / 'lab.sqlite3'}",
        "REDIS_URL": NOWHERE,
        "QUEUE_REDIS_URL": "",
        "LOCK_REDIS_URL": "",
        "CACHE_URL": "",  # the server of REDIS_URL
        "CELERY_BROKER_URL": NOWHERE,
        "REDLOCK_URLS": "",
        "ZOOKEEPER_HOSTS": "",
        "PAYMENT_PROVIDER": "simulated",
        "EMAIL_URL": "",
        "DEBUG": "0",
        "MAX_WAITING": "100",  # the buyers shall wait for the lock, not be refused before
        "PURCHASES_PER_GRANT": "1",  # and each buyer takes the lock itself
        "LOG_LEVEL": "WARNING",
    }
    # The metrics of a shop that started this process must not count an experiment.
    environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
    return environ


def create_tables() -> None:
    """Create all tables from the models: the migrations of a shop take seven times as long.

    The library's migrations run, because they also create its sequence of tokens on PostgreSQL.
    """
    labels = {one.label for one in apps.get_app_configs()} - {"locking"}
    settings.MIGRATION_MODULES = dict.fromkeys(labels)
    call_command("migrate", verbosity=0, interactive=False, run_syncdb=True)


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The servers and settings that an experiment needs."""

    database: str = "sqlite"
    servers: Sequence[str] = ()
    """Those started at once: redis, redlock, zookeeper."""
    environ: Mapping[str, str] = field(default_factory=dict)
    proxied: Sequence[str] = ()
    """Servers that the experiment reaches through a proxy: database, redis."""
    nodes: int = 1
    """Those of ZooKeeper."""
    is_durable: bool = False
    """Redis keeps what it has confirmed, and ZooKeeper has three nodes that can be separated."""
    is_deployed: bool = False
    """The shop's own limits apply, and Redis is its broker as well."""
    runs_without: bool = False
    """The experiment runs although a server is missing, and reports that."""

    @contextmanager
    def start(
        self, folder: Path, announce: Callable[[str], object] = lambda name: None
    ) -> Iterator["Stores"]:
        """Run the servers until the block ends; the files of the shop are in `folder`.

        `announce` is called with the name of each server before it starts.
        """
        with ExitStack() as stack:
            stores = Stores(self, stack)
            stores.environ = (
                private_environ(folder) | self._up(stores, announce) | dict(self.environ)
            )
            if self.is_deployed:
                stores.environ["CELERY_BROKER_URL"] = stores.environ["REDIS_URL"]
                for name in ("MAX_WAITING", "PURCHASES_PER_GRANT"):
                    del stores.environ[name]
            yield stores

    def _up(self, stores: "Stores", announce: Callable[[str], object]) -> dict[str, str]:
        environ: dict[str, str] = {}
        for name in ["database"] * (self.database != "sqlite") + [*self.servers]:
            announce(name)
            try:
                environ |= getattr(stores, f"_{name}")()
            except ServerError as error:
                stores.missing[name] = str(error)
        return environ


class Stores:
    """The running servers; those that no topology named start when they are asked for."""

    environ: dict[str, str]
    """The variables of a process that uses them."""

    def __init__(self, topology: Topology, stack: ExitStack) -> None:
        self.topology, self._stack = topology, stack
        self.missing: dict[str, str] = {}
        """By name, "database" or that of a backend: why the server is not available."""
        self.servers: dict[str, Server] = {}
        """The server of each kind that a fault may hit."""
        self.proxies: dict[str, Proxy] = {}
        self.idle: list[Any] = []
        """Worker processes that one part of an experiment leaves for the next."""
        stack.callback(lambda: [process.close() for process in self.idle])

    def start(self, server: AbstractContextManager[Resource]) -> Resource:
        """Start a server, or another resource, that ends with the experiment at the latest."""
        return self._stack.enter_context(server)

    @cached_property
    def redis(self) -> Redis:
        """One Redis."""
        config = DURABLE if self.topology.is_durable else ()
        return self.start(Redis(prefer="embedded", config=config))

    @cached_property
    def zookeeper(self) -> ZooKeeper:
        """One node or more, or three that can be separated."""
        asked = self.topology
        return self.start(Partitioned() if asked.is_durable else ZooKeeper(asked.nodes))

    @cached_property
    def mariadb(self) -> MariaDb:
        """A MariaDB."""
        return self.start(MariaDb())

    def _database(self) -> dict[str, str]:
        if self.topology.database == "mariadb":
            return {"DATABASE_URL": self._url("database", self.mariadb)}
        config = ["--shared_preload_libraries=pg_stat_statements"]
        return {"DATABASE_URL": self._url("database", self.start(PostgreSql(config=config)))}

    def _redis(self) -> dict[str, str]:
        return {"REDIS_URL": self._url("redis", self.redis)}

    def _redlock(self) -> dict[str, str]:
        masters = [Redis(prefer="embedded") for _ in range(5)]
        start_all(masters)
        self._stack.callback(stop_all, masters)
        self.servers["redlock"] = masters[0]
        return {"REDLOCK_URLS": ",".join(master.url for master in masters)}

    def _zookeeper(self) -> dict[str, str]:
        self.servers["zookeeper"] = self.zookeeper.nodes[0]
        return {"ZOOKEEPER_HOSTS": self.zookeeper.hosts}

    def _url(self, name: str, server: Server) -> str:
        self.servers[name] = server
        if name not in self.topology.proxied:
            return server.url
        # While the server is down, new connections are refused as without the proxy.
        proxy = self.proxies[name] = self.start(Proxy(server.port, connect_timeout=0))
        return server.url.replace(f":{server.port}", f":{proxy.port}")
