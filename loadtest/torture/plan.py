"""Plans of torture runs, generated from a seed: the workload, and which fault begins when."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self

from django.utils.module_loading import import_string

from locking.backends.base import Capabilities

TTL = 1.0
"""Seconds of a lease, and of a ZooKeeper session, which cannot be shorter here."""
PROCESSES, THREADS, SLOTS = 3, 2, 2
"""Working processes, their threads or tasks, and the holders of a semaphore."""
WORK_SECONDS = 2.5
FAULTS_PER_RUN = (1, 5)
NODE = "locking.backends"


class Store(NamedTuple):
    """A lock backend on its servers."""

    backend: str
    server: str
    """The class of its servers in `devservers`; empty if it needs none."""
    size: int = 1
    options: dict[str, Any] = {}

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities of the backend."""
        found: Capabilities = import_string(self.backend).capabilities
        return found


_FAST = {"SOCKET_TIMEOUT": 0.5, "CONNECT_TIMEOUT": 0.5}
_MYSQL = f"{NODE}.mysql_session.MySQLSessionBackend"
_POSTGRESQL = f"{NODE}.postgresql_session.PostgreSQLSessionBackend"
_DATABASE = f"{NODE}.database.DatabaseBackend"
STORES = {
    "none": Store(f"{NODE}.none.NoneBackend", ""),
    "process": Store(f"{NODE}.process.ProcessBackend", ""),
    "redis": Store(f"{NODE}.redis.RedisBackend", "Redis", options=_FAST),
    "redlock": Store(
        f"{NODE}.redlock.RedLockBackend", "Redis", 3, {"NODE_TIMEOUT": 0.1, "RESTART_DELAY": TTL}
    ),
    "database": Store(_DATABASE, ""),
    "database-mariadb": Store(_DATABASE, "MariaDb"),
    "database-postgresql": Store(_DATABASE, "PostgreSql"),
    "mysql_session": Store(_MYSQL, "MariaDb"),
    "postgresql_session": Store(_POSTGRESQL, "PostgreSql"),
    "zookeeper": Store(
        f"{NODE}.zookeeper.ZooKeeperBackend",
        "ZooKeeper",
        options={"SESSION_TIMEOUT": TTL, "CONNECT_TIMEOUT": 1.0},
    ),
}
"""The database of "database" is a file of SQLite; `none` is the control."""
DATABASES = ("MariaDb", "PostgreSql")
WORKLOADS = (
    "mutex",
    "reentrant",
    "fenced",
    "asyncio",
    "semaphore",
    "read-write",
    "hand-over",
    "switch",
)
OF_PROCESSES, OF_LINKS = ("kill", "stop"), ("partition", "late", "delay", "cut")
OF_SERVERS = ("restart", "pause")
FAULTS = (*OF_PROCESSES, *OF_LINKS, *OF_SERVERS)
FORGETTING = {"Redis": ("restart",)}
"""Faults after which a server does not know its locks, so that two holders are expected."""
SESSION_ENDING = ("partition", "late", "cut", "restart")
"""Faults that end a session on the server before its holder can know."""


class Fault(NamedTuple):
    """A fault that begins `at` seconds after the start and lasts for `seconds`."""

    kind: str
    at: float
    seconds: float
    target: int
    """The number of the process or of the server; for a link, that of its process, 0 for all."""

    def __str__(self) -> str:
        return f"{self.kind} {self.target} at {self.at:g} s for {self.seconds:g} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run."""

    seed: int
    backend: str
    workload: str
    names: int
    """Number of locks."""
    faults: tuple[Fault, ...]
    seconds: float = WORK_SECONDS

    @property
    def store(self) -> Store:
        """Return the backend and its servers."""
        return STORES[self.backend]

    @property
    def processes(self) -> int:
        """Return the number of working processes."""
        return 1 if self.backend == "process" else PROCESSES

    def only(self, numbers: Sequence[int]) -> Self:
        """Return the plan with these of its faults."""
        return replace(self, faults=tuple(self.faults[number] for number in numbers))

    def excludes(self) -> bool:
        """Return whether the backend promises one holder under these faults."""
        declared, kinds = self.store.capabilities, {fault.kind for fault in self.faults}
        forgets = kinds & set(FORGETTING.get(self.store.server, ()))
        if self.backend == "redlock":
            forgets = set()  # RESTART_DELAY
        loses = kinds & set(SESSION_ENDING) if declared.session_bound and self.is_sql else set()
        return not forgets and not loses

    def fences(self) -> bool:
        """Return whether the backend promises that tokens grow."""
        return self.store.capabilities.fencing

    @property
    def is_sql(self) -> bool:
        """Return whether the server is a database."""
        return self.store.server in DATABASES

    def as_json(self) -> dict[str, Any]:
        """Return the plan in values that JSON can represent."""
        return asdict(self) | {"faults": [list(fault) for fault in self.faults]}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        """Return the plan that `as_json` described."""
        return cls(**{**found, "faults": tuple(Fault(*fault) for fault in found["faults"])})


def workloads_of(backend: str) -> list[str]:
    """Return the workloads that a backend can run."""
    declared = STORES[backend].capabilities
    missing = {
        "fenced": not declared.fencing,
        "semaphore": not declared.shared,
        "read-write": not declared.shared,
        "hand-over": not declared.hands_over,
        "switch": declared.exclusion != "machines",
    }
    return [workload for workload in WORKLOADS if not missing.get(workload)]


def kinds_of(backend: str) -> list[str]:
    """Return the faults that can hit a backend."""
    if backend == "process":
        return ["stop"]
    return list(OF_PROCESSES if not STORES[backend].server else FAULTS)


def generate(seed: int, backend: str, workloads: Sequence[str] = ()) -> Plan:
    """Return the plan of a seed."""
    rng = random.Random(f"{seed} {backend}")
    known = [one for one in workloads_of(backend) if not workloads or one in workloads]
    workload, kinds = rng.choice(known), kinds_of(backend)
    faults = []
    for _ in range(rng.randint(*FAULTS_PER_RUN)):
        kind = rng.choice(kinds)
        at, seconds = round(rng.uniform(0.1, WORK_SECONDS - 0.3), 2), _seconds(kind, rng)
        faults.append(Fault(kind, at, seconds, _target(kind, backend, rng)))
    return Plan(
        seed=seed,
        backend=backend,
        workload=workload,
        names=rng.choice((1, 1, 2, 4)),
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
    )


def _seconds(kind: str, rng: random.Random) -> float:
    if kind == "kill":
        return 0.0
    return round(rng.choice((rng.uniform(0.1, 0.6), rng.uniform(0.8, 2.2) * TTL)), 2)


def _target(kind: str, backend: str, rng: random.Random) -> int:
    if kind in OF_PROCESSES:
        return rng.randint(1, 1 if backend == "process" else PROCESSES)
    if kind in OF_LINKS:
        return rng.randint(0, PROCESSES)
    return rng.randrange(STORES[backend].size)
