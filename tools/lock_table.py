"""Write the table of backends and properties in docs/reference/locks.md (REQUIREMENTS L14).

.venv/bin/python tools/lock_table.py
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import django
from django.utils.module_loading import import_string

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings.lab")
PAGE = ROOT / "docs/reference/locks.md"
PART = "lock_table"

from loadtest.charts import marked  # noqa: E402
from locking.backends.base import PROPERTIES, Capabilities  # noqa: E402

BACKENDS = {
    "none": "none.NoneBackend",
    "process": "process.ProcessBackend",
    "database": "database.DatabaseBackend",
    "mysql_session": "mysql_session.MySQLSessionBackend",
    "redis": "redis.RedisBackend",
    "redlock": "redlock.RedLockBackend",
    "zookeeper": "zookeeper.ZooKeeperBackend",
}
"""Every backend of the library, by its usual alias."""


def capabilities() -> dict[str, Capabilities]:
    """Return what each backend of the library declares, by alias."""
    return {
        alias: import_string(f"locking.backends.{path}").capabilities
        for alias, path in BACKENDS.items()
    }


def markdown() -> str:
    """Return the table as Markdown."""
    rows: list[Iterable[str]] = [["backend", "excludes", *PROPERTIES.values()]]
    rows.append(["---"] * (len(PROPERTIES) + 2))
    for alias, declared in capabilities().items():
        marks = ("yes" if getattr(declared, name) else "-" for name in PROPERTIES)
        rows.append([f"`{alias}`", declared.exclusion, *marks])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


if __name__ == "__main__":
    django.setup()
    marked.write(PAGE, PART, markdown())
