"""The backends on their servers, and the workloads and faults that they can run."""

from collections.abc import Callable
from typing import Any, NamedTuple

from django.utils.module_loading import import_string

from locking.claims import Capabilities

TTL = 1.0
"""Seconds of a lease, and of a ZooKeeper session, which cannot be shorter here."""
ALIAS, OTHER = "torture", "other"
"""The backend of a run, and the one that a switch changes to: a table, or Redis if ALIAS is SQL."""
NODE = "locking.backends"
DATABASES = ("MariaDb", "PostgreSql")


class Store(NamedTuple):
    """A lock backend on its servers."""

    backend: str
    server: str = ""
    """The class of its servers in `devservers`; empty if it needs none."""
    size: int = 1
    options: dict[str, Any] = {}
    shop: str = ""
    """The database of the shop that uses it: a class in `devservers`, or SQLite; or no shop."""

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities of the backend."""
        found: Capabilities = import_string(self.backend).capabilities
        return found

    @property
    def servers(self) -> list[str]:
        """Return the classes of all servers; that of a shop's database comes last."""
        own = [self.server] * self.size if self.server else []
        return [*own, self.shop] if self.shop in DATABASES else own

    @property
    def can_switch(self) -> bool:
        """Return whether a policy with this backend can be switched."""
        return self.capabilities.exclusion == "machines" and self.capabilities.lists_holders


_FAST = {"SOCKET_TIMEOUT": 0.5, "CONNECT_TIMEOUT": 0.5}
_SESSIONS = {"SESSION_TIMEOUT": TTL, "CONNECT_TIMEOUT": 1.0}
_REDIS = Store(f"{NODE}.redis.RedisBackend", "Redis", 1, _FAST)
_TABLE = Store(f"{NODE}.database.DatabaseBackend")
_VOTES = {"NODE_TIMEOUT": 0.1, "RESTART_DELAY": TTL}
STORES = {
    "none": Store(f"{NODE}.none.NoneBackend"),
    "process": Store(f"{NODE}.process.ProcessBackend"),
    "redis": _REDIS,
    "redlock": Store(f"{NODE}.redlock.RedLockBackend", "Redis", 3, _VOTES),
    "database": _TABLE,
    "database-mariadb": _TABLE._replace(server="MariaDb"),
    "database-postgresql": _TABLE._replace(server="PostgreSql"),
    "mysql_session": Store(f"{NODE}.mysql_session.MySQLSessionBackend", "MariaDb"),
    "postgresql_session": Store(
        f"{NODE}.postgresql_session.PostgreSQLSessionBackend", "PostgreSql"
    ),
    "zookeeper": Store(f"{NODE}.zookeeper.ZooKeeperBackend", "ZooKeeper", 1, _SESSIONS),
    "shop-mariadb": _REDIS._replace(shop="MariaDb"),
    "shop-postgresql": _REDIS._replace(shop="PostgreSql"),
    "shop-sqlite": _REDIS._replace(shop="SQLite"),
    "shop-none": Store(f"{NODE}.none.NoneBackend", "Redis", shop="SQLite"),
}
"""The database of "database" is a file of SQLite."""
CONTROLS = "none", "shop-none"

WORKLOADS: dict[str, Callable[[Store], object]] = {
    "mutex": lambda store: True,
    "reentrant": lambda store: True,
    "asyncio": lambda store: True,
    "semaphore": lambda store: store.capabilities.shared,
    "read-write": lambda store: store.capabilities.shared,
    "hand-over": lambda store: store.capabilities.hands_over,
    "switch": lambda store: store.can_switch,
    "stock": lambda store: False,
}
"""Each with the backends that can run it; shops run the last one, and no other."""
MARKS: dict[str, tuple[str, ...]] = {
    "mutex": ("grants", "timeouts", "lost", "unavailable"),
    "reentrant": ("re-entries",),
    "asyncio": ("grants", "cancelled"),
    "semaphore": ("grants", "timeouts"),
    "read-write": ("grants", "timeouts"),
    "hand-over": ("hand-overs", "continued"),
    "switch": ("grants", "switches"),
    "stock": ("grants", "cancel", "pay"),
}
"""States that the runs of a workload must reach: runs that never reach them prove nothing."""
HOLDING = ("mutex", "asyncio")
"""Those that acquire and release one lock."""

OF_PROCESSES, OF_SERVERS = ("kill", "stop"), ("restart", "pause")
CUTTING_OFF = ("partition", "late", "cut")
"""Faults in which a process gets no reply."""
OF_LINKS = (*CUTTING_OFF, "delay")
ON_LINKS = (*OF_LINKS, "late-commit")
"""The faults whose target is a process, although it does not notice them itself."""


def workloads_of(backend: str) -> list[str]:
    """Return the workloads that a backend can run."""
    store = STORES[backend]
    return ["stock"] if store.shop else [one for one, fits in WORKLOADS.items() if fits(store)]


def kinds_of(backend: str) -> list[str]:
    """Return the faults that can hit a backend."""
    store = STORES[backend]
    if backend == "shop-none":
        return [*OF_LINKS]
    if not store.server:
        return ["stop"] if backend == "process" else [*OF_PROCESSES]
    # The other workloads have no transaction with a COMMIT.
    commits = store.shop in DATABASES or (store.server in DATABASES and store.can_switch)
    return [*OF_PROCESSES, *OF_LINKS, *OF_SERVERS, *(["late-commit"] if commits else [])]
