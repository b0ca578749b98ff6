"""The locks that are measured: an opener each, and those of this library.

An opener is called in the process and thread that use the lock, and connects it to the private
stores of the settings.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from locking import locks
from locking.backends.zookeeper.backend import ZooKeeperBackend
from locking.lease import Lease

Role = Literal["floor", "ours", "peer"]
Family = Literal["redis", "redlock", "zookeeper", "mysql", "postgresql"]


@dataclass(frozen=True, slots=True)
class Handle:
    """A lock on one name; `acquire` waits for the given seconds and returns True if granted."""

    acquire: Callable[[float], object]
    release: Callable[[], object]
    token: Callable[[], int | None] = lambda: None
    """Return the fencing token of the last grant, if the library gives one."""
    is_lost: Callable[[], bool] | None = None
    """Return True if the library has told its holder of the loss: in a flag or a callback."""
    is_owned: Callable[[], object] | None = None
    """Ask the library, as its documentation says, if the caller still holds the lock."""


Opener = Callable[..., Handle]
"""The arguments are the name of the lock, its ttl in seconds, and options of the library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One lock of one library. A floor is the bare commands, and does not wait."""

    name: str
    family: Family
    role: Role
    open: Opener
    waits: bool = True
    session: float | None = None
    """Seconds after which the service drops a dead holder; None if the lock's ttl does."""


SYSTEMS: list[System] = []


def system(name: str, family: Family, role: Role, **options: Any) -> Callable[[Opener], object]:
    """Register the decorated opener; `options` are further fields of System."""
    return lambda opener: SYSTEMS.append(
        System(name=name, family=family, role=role, open=opener, **options)
    )


def _open(alias: str, name: str, ttl: float) -> Handle:
    lock = locks[alias].lock(name, ttl=ttl)
    leases: list[Lease] = []

    def acquire(wait: float) -> bool:
        leases[:] = [lease] if lock.acquire(timeout=wait) and (lease := lock.lease) else []
        return bool(leases)

    def token() -> int | None:
        return leases[0].token if locks[alias].capabilities.fencing else None

    return Handle(acquire, lock.release, token, lambda: leases[0].lost, lock.owned)


OURS: dict[str, tuple[Family, float | None]] = {
    "redis": ("redis", None),
    "redlock": ("redlock", None),
    "zookeeper": ("zookeeper", ZooKeeperBackend.known_options["SESSION_TIMEOUT"].default),
    "database": ("mysql", None),
    "mysql_session": ("mysql", 0.0),
    "postgresql": ("postgresql", None),
    "postgresql_session": ("postgresql", 0.0),
}
for _name, (_family, _session) in OURS.items():
    _alias = "database" if _name == "postgresql" else _name
    system(_name, _family, "ours", session=_session)(partial(_open, _alias))
