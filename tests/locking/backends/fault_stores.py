"""The backends under test and processes that have them too, for the tests of faults."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from locking.handler import create
from locking.lease import LockStore
from tests.locking.backends.database.postgresql_tools import alias, server
from tests.locking.lock_worker import LockWorker

__all__ = ["alias", "server"]

TTL = 1.0
"""Seconds of a lease, and of a ZooKeeper session, which cannot be shorter here."""
SESSIONS = [
    pytest.param("mysql_session", marks=pytest.mark.only("mysql")),
    "postgresql_session",
]
"""Those whose grant ends with its holder's connection."""
NONE = {"BACKEND": "locking.backends.none.NoneBackend"}


@dataclass(frozen=True)
class Store:
    """One backend here, and processes that have the same."""

    backend: LockStore
    conf: dict[str, Any]
    another: Callable[[], AbstractContextManager[LockWorker]]


@pytest.fixture(scope="module")
def idle() -> Iterator[list[LockWorker]]:
    """Processes to use again: starting one costs more than a test."""
    workers: list[LockWorker] = []
    yield workers
    for worker in workers:
        worker.kill()


@pytest.fixture
def name() -> str:
    return f"faults:{uuid.uuid4().hex}"


@pytest.fixture
def store(
    request: pytest.FixtureRequest, database_url: str, idle: list[LockWorker]
) -> Iterator[Store]:
    def conf(module: str, name: str, location: object, **options: Any) -> dict[str, Any]:
        path = f"locking.backends.{module}.{name}Backend"
        return {"BACKEND": path, "LOCATION": location, "TTL": TTL, "OPTIONS": options}

    def made(kind: str) -> dict[str, Any]:
        match kind:
            case "redlock":
                five = request.getfixturevalue("redis_five")
                return conf(kind, "RedLock", [server.url for server in five])
            case "mysql_session":
                return conf(kind, "MySQLSession", "default")
            case "postgresql_session":
                return conf(kind, "PostgreSQLSession", "default")
        return conf("database", "Database", "default")

    entry, databases = made(request.param), {}
    if "postgresql" in request.param.lower():
        entry["LOCATION"] = request.getfixturevalue("alias")
        databases = {entry["LOCATION"]: request.getfixturevalue("postgresql").url}

    @contextmanager
    def another() -> Iterator[LockWorker]:
        worker = idle.pop() if idle else LockWorker(NONE, env={"DATABASE_URL": database_url})
        worker.configure(entry, databases)
        try:
            yield worker
        except BaseException:
            worker.kill()
            raise
        if worker.is_alive:
            idle.append(worker)

    backend = create("faults", entry)
    yield Store(backend, entry, another)
    backend.close()
