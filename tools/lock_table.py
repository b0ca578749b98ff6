"""Write the table of the backends' properties in docs/reference/locks.md.

.venv/bin/python tools/lock_table.py
"""

import os
import sys
from pathlib import Path

import django
from django.utils.module_loading import import_string

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings.lab")
django.setup()  # before the imports: the library reads the settings, and they import the library
PAGE = ROOT / "docs/reference/locks.md"
PART = "lock_table"

from loadtest.kernel import marked  # noqa: E402
from locking.claims import PROPERTIES, Capabilities  # noqa: E402

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


def capabilities() -> dict[str, Capabilities]:
    """Return what each backend declares, by alias."""
    return {
        alias: import_string(f"locking.backends.{path}").capabilities
        for alias, path in BACKENDS.items()
    }


def markdown() -> str:
    """Return the table of properties as Markdown."""
    rows = []
    for alias, declared in capabilities().items():
        marks = ("yes" if getattr(declared, name) else "-" for name in PROPERTIES)
        rows.append([f"`{alias}`", declared.exclusion, *marks])
    return marked.table(["backend", "excludes", *PROPERTIES.values()], rows)


if __name__ == "__main__":
    marked.write(PAGE, PART, markdown())
