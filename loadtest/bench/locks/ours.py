"""This library's own backends."""

from loadtest.bench.locks.systems import Family, Handle, system
from locking import locks
from locking.backends.zookeeper.backend import OPTIONS

BACKENDS: dict[str, tuple[Family, float | None]] = {
    "redis": ("redis", None),
    "redlock": ("redlock", None),
    "zookeeper": ("zookeeper", OPTIONS["SESSION_TIMEOUT"]),
    "database": ("mysql", None),
    "mysql_session": ("mysql", 0.0),
}


def _register(alias: str, family: Family, session: float | None) -> None:
    @system(alias, family, "ours", session=session)
    def _open(name: str, ttl: float) -> Handle:
        lock = locks[alias].lock(name, ttl=ttl)
        return Handle(lambda wait: lock.acquire(timeout=wait), lock.release)


for _alias, (_family, _session) in BACKENDS.items():
    _register(_alias, _family, _session)
