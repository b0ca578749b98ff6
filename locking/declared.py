"""The table of backend x property, from what each backend declares (REQUIREMENTS L14)."""

from collections.abc import Iterable

from django.utils.translation import gettext_noop as _

from locking.backends.base import Capabilities
from locking.handler import backend_class

BACKENDS = {
    "none": "none.NoneBackend",
    "process": "process.ProcessBackend",
    "database": "database.DatabaseBackend",
    "mysql_session": "mysql_session.MySQLSessionBackend",
    "redis": "redis.RedisBackend",
    "redlock": "redlock.RedLockBackend",
    "zookeeper": "zookeeper.ZooKeeperBackend",
}
"""Every backend that comes with this library, by its usual alias."""

PROPERTIES = {
    "reentrant": _("reentrant"),
    "counts_in_store": _("count in store"),
    "fair": _("fair"),
    "expires": _("expires"),
    "session_bound": _("ends with session"),
    "fencing": _("fencing token"),
    "survives_minority": _("survives a minority down"),
    "wakes_waiters": _("wakes waiters"),
    "lists_holders": _("lists holders"),
}


def capabilities() -> dict[str, Capabilities]:
    """What each backend of this library declares."""
    return {
        alias: backend_class({"BACKEND": f"locking.backends.{path}"}).capabilities
        for alias, path in BACKENDS.items()
    }


def markdown() -> str:
    """The table as it stands in docs/locks.md."""
    rows: list[Iterable[str]] = [["backend", "excludes", *PROPERTIES.values()]]
    rows.append(["---"] * (len(PROPERTIES) + 2))
    for alias, declared in capabilities().items():
        marks = ("yes" if getattr(declared, name) else "-" for name in PROPERTIES)
        rows.append([f"`{alias}`", declared.exclusion, *marks])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"
