"""Plans of torture runs, generated from a seed: the workload, and which fault begins when."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self

from django.utils.module_loading import import_string

from locking.backends.base import Capabilities

TTL = 1.0
"""Seconds of a lease, and of a ZooKeeper session, which cannot be shorter here."""
LONG_TTL = 20.0
"""Seconds of a lease where a lock that is not released must not end by itself."""
PROCESSES, THREADS, SLOTS = 3, 2, 2
"""Working processes, their threads or tasks, and the holders of a semaphore."""
WORK_SECONDS, SWITCH_SECONDS = 2.5, 5.0
"""Seconds of a run, and of one in which the policy is switched, which takes at least a second."""
ANNOUNCED = 1.2
"""Seconds after which a switch has read the holders in the old backend."""
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
HOLDING = ("mutex", "fenced", "asyncio")
"""Those that acquire and release one lock."""
OF_PROCESSES, OF_LINKS = ("kill", "stop"), ("partition", "late", "delay", "cut")
OF_SERVERS = {
    "Redis": ("restart", "pause", "clock", "exhausted"),
    "MariaDb": ("restart", "pause", "slow-commit"),
    "PostgreSql": ("restart", "pause"),
    "ZooKeeper": ("restart", "pause"),
}
FORGETTING = {"restart", "promote", "clock"}
"""Faults after which one Redis does not know its locks, so that two holders are expected."""
SESSION_ENDING = {"partition", "late", "cut", "restart"}
"""Faults that end a session on the server before its holder can know."""
ALL, OPERATOR = 0, -1
"""Targets of a fault of links: all processes that work, and the one that switches the policy."""


class Fault(NamedTuple):
    """A fault that begins `at` seconds after the start and lasts for `seconds`."""

    kind: str
    at: float
    seconds: float
    target: int
    """The number of the process or of the server; for a link, that of its process; see ALL."""

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
    ttl: float = TTL

    @property
    def seconds(self) -> float:
        """Return the seconds of work."""
        return SWITCH_SECONDS if self.workload == "switch" else WORK_SECONDS

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
        store, kinds = self.store, {fault.kind for fault in self.faults}
        if store.size > 1:  # of RedLock, which delays restarts
            return len({fault.target for fault in self.faults if fault.kind == "clock"}) < 2
        if store.server == "Redis":
            return not kinds & FORGETTING
        ends_early = store.server in DATABASES and store.capabilities.session_bound
        return not (ends_early and kinds & SESSION_ENDING)

    def fences(self) -> bool:
        """Return whether the backend promises that tokens grow."""
        return self.store.capabilities.fencing

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
    store = STORES[backend]
    if backend == "process":
        return ["stop"]
    if not store.server:
        return list(OF_PROCESSES)
    own = ["promote", "duplicate"] if backend == "redis" else []
    return [*OF_PROCESSES, *OF_LINKS, *OF_SERVERS[store.server], *own]


def generate(seed: int, backend: str, workloads: Sequence[str] = ()) -> Plan:
    """Return the plan of a seed."""
    rng = random.Random(f"{seed} {backend}")
    known = [one for one in workloads_of(backend) if not workloads or one in workloads]
    workload, kinds = rng.choice(known), kinds_of(backend)
    names = rng.choice((1, 1, 2, 4))
    has_long_leases = backend == "redis" and workload in HOLDING and rng.random() < 0.5
    if has_long_leases:  # no fault may leave a lock without an owner that can release it
        kinds = [*OF_LINKS, "pause", "exhausted"]
    plan = Plan(
        seed=seed,
        backend=backend,
        workload=workload,
        names=names,
        faults=(),
        ttl=LONG_TTL if has_long_leases else TTL,
    )
    faults = []
    for _ in range(rng.randint(*FAULTS_PER_RUN)):
        # Half of the faults of a switch begin before it has read the holders of the old backend.
        last = ANNOUNCED if plan.workload == "switch" and rng.random() < 0.5 else plan.seconds - 0.3
        kind, at = rng.choice(kinds), round(rng.uniform(0.1, last), 2)
        faults.append(Fault(kind, at, _seconds(kind, rng), _target(kind, plan, rng)))
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


def _seconds(kind: str, rng: random.Random) -> float:
    if kind == "kill":
        return 0.0
    return round(rng.choice((rng.uniform(0.1, 0.6), rng.uniform(0.8, 2.6) * TTL)), 2)


def _target(kind: str, plan: Plan, rng: random.Random) -> int:
    if kind in OF_PROCESSES:
        return rng.randint(1, plan.processes)
    if kind in OF_LINKS or kind == "duplicate":
        worker = rng.randint(ALL, PROCESSES)
        return rng.choice((OPERATOR, worker)) if plan.workload == "switch" else worker
    return rng.randrange(plan.store.size)
