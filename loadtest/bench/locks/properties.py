"""The library's backends: what each declares, what a failure does to it, and its measured cost."""

import re
from functools import cache
from pathlib import Path

from django.conf import settings
from django.utils.module_loading import import_string
from django.utils.translation import gettext_noop

from locking.claims import Capabilities

BACKENDS = {
    "none": "none.NoneBackend",
    "process": "process.ProcessBackend",
    "database": "database.DatabaseBackend",
    "mysql_session": "mysql_session.MySQLSessionBackend",
    "postgresql_session": "postgresql_session.PostgreSQLSessionBackend",
    "redis": "redis.RedisBackend",
    "redlock": "redlock.RedLockBackend",
    "zookeeper": "zookeeper.ZooKeeperBackend",
}
"""Every backend of the library, by its usual alias."""
LOCK, HAND_OFF = gettext_noop("lock"), gettext_noop("hand-off p50, ms")
FAILURES = {
    "killed": gettext_noop("holder killed: next grant"),
    "paused": gettext_noop("holder paused: its late write"),
    "failover": gettext_noop("store fails over"),
    "clock": gettext_noop("store's clock jumps"),
}
OUTCOMES = {
    "session": gettext_noop("when its session ends"),
    "lease": gettext_noop("when its lease ends"),
    "fenced": gettext_noop("rejected by the fence"),
    "unfenced": gettext_noop("needs a conditional write"),
    "survives": gettext_noop("lock survives"),
    "lost": gettext_noop("lock may be lost"),
    "two": gettext_noop("two holders"),
    "majority": gettext_noop("two holders if a majority jumps"),
    "unaffected": gettext_noop("no effect"),
}
MEASURED = Path(settings.BASE_DIR) / "docs/measurements/locks.md"


@cache
def capabilities() -> dict[str, Capabilities]:
    """Return what each backend of the library declares, by alias."""
    return {
        alias: import_string(f"locking.backends.{path}").capabilities
        for alias, path in BACKENDS.items()
    }


def outcome(declared: Capabilities, failure: str) -> str:
    """Return the name of what a failure does to a lock, one of OUTCOMES."""
    if failure == "killed":
        return "session" if declared.session_bound else "lease"
    if declared.exclusion == "process":  # the lock stops and ends together with its holder
        return "unaffected"
    if failure == "paused":
        return "fenced" if declared.fencing else "unfenced"
    if failure == "failover":
        return "survives" if declared.survives_minority else "lost"
    if not declared.expires:
        return "unaffected"
    return "majority" if declared.survives_minority else "two"


def figures(alias: str) -> dict[str, str]:
    """Return the figures of a backend in docs/measurements by column; none if it has no row."""
    text = MEASURED.read_text() if MEASURED.exists() else ""
    rows = [
        [cell.strip() for cell in row.split("|")] for row in re.findall(r"^\|(.*)\|$", text, re.M)
    ]
    return next(
        (dict(zip(rows[0], row, strict=True)) for row in rows if row[0] == f"**{alias}**"), {}
    )
