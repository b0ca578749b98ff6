"""The backends under test and processes that have them too, for the tests of faults."""

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from locking.backends.base import Backend
from locking.handler import create
from tests.locking.backends.database.postgresql_tools import alias, server
from tests.locking.lock_worker import LockWorker

__all__ = ["alias", "server"]

TTL = 1.0
"""Seconds of a lease, and of a ZooKeeper session, which cannot be shorter here."""
database = pytest.param("database", marks=pytest.mark.stores)
queued_database = pytest.param("database", marks=pytest.mark.only("mysql"))
SESSIONS = [
    pytest.param("mysql_session", marks=pytest.mark.only("mysql")),
    "postgresql_session",
]
"""Those whose grant ends with its holder's connection."""
LEASED = [
    "redis",
    "redis-sentinel",
    "redis-cluster",
    database,
    "database on PostgreSQL",
    "redlock",
    "zookeeper",
]
"""Those whose grant ends although its holder's connection lives."""
Idle = dict[str, list[LockWorker]]


@dataclass(frozen=True)
class Store:
    """One backend here, and processes that have the same."""

    backend: Backend
    conf: dict[str, Any]
    """That of the other processes."""
    another: Callable[[], AbstractContextManager[LockWorker]]


@pytest.fixture(scope="module")
def idle() -> Iterator[Idle]:
    """Processes to use again, by DATABASE_URL: starting one costs more than a test."""
    workers: Idle = defaultdict(list)
    yield workers
    for some in workers.values():
        for worker in some:
            worker.kill()


@pytest.fixture
def name() -> str:
    return f"faults:{uuid.uuid4().hex}"


@pytest.fixture
def store(
    request: pytest.FixtureRequest, database_url: str, idle: Idle
) -> Iterator[Store]:
    def conf(module: str, name: str, location: object, **options: Any) -> dict[str, Any]:
        path = f"locking.backends.{module}.{name}Backend"
        return {"BACKEND": path, "LOCATION": location, "TTL": TTL, "OPTIONS": options}

    def made(kind: str) -> dict[str, Any]:
        match kind:
            case "redis":
                return conf(kind, "Redis", request.getfixturevalue("redis_server").url)
            case "redis-unfair":
                url = request.getfixturevalue("redis_server").url
                return conf("redis", "Redis", url, FAIR=False)
            case "redis-sentinel" | "redis-cluster":
                servers = request.getfixturevalue(kind.replace("-", "_"))
                return conf("redis", "Redis", servers.url)
            case "redlock":
                five = request.getfixturevalue("redis_five")
                return conf(kind, "RedLock", [server.url for server in five])
            case "zookeeper":
                hosts = request.getfixturevalue("zookeeper").hosts
                return conf(kind, "ZooKeeper", hosts, SESSION_TIMEOUT=TTL)
            case "mysql_session":
                return conf(kind, "MySQLSession", "default")
            case "postgresql_session":
                return conf(kind, "PostgreSQLSession", "default")
        return conf("database", "Database", "default")

    entry = here = made(request.param)
    if "postgresql" in request.param.lower():
        # In the other processes it is the default database.
        here = entry | {"LOCATION": request.getfixturevalue("alias")}
        database_url = request.getfixturevalue("postgresql").url

    @contextmanager
    def another() -> Iterator[LockWorker]:
        if idle[database_url]:
            worker = idle[database_url].pop()
            worker.configure(entry)
        else:
            worker = LockWorker(entry, env={"DATABASE_URL": database_url})
        try:
            yield worker
        except BaseException:
            worker.kill()
            raise
        if worker.is_alive:
            idle[database_url].append(worker)

    backend = create("faults", here)
    yield Store(backend, entry, another)
    backend.close()
