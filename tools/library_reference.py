"""Write the generated parts of docs/library/reference.md and of docs/reference/locks.md.

.venv/bin/python -m tools.library_reference
"""

import inspect
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import django
from django.utils.module_loading import import_string

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings.lab")
django.setup()  # before the imports: the library reads the settings, and they import the library

from loadtest.kernel import marked  # noqa: E402
from locking import exceptions  # noqa: E402
from locking.claims import Capabilities  # noqa: E402

DOCS = Path(__file__).resolve().parent.parent / "docs"
REFERENCE, LOCKS = DOCS / "library/reference.md", DOCS / "reference/locks.md"
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
OPTIONS = "ttl timeout renew on_lost reentrant max_hold until cancel_on_loss"
LOCK = "acquire try_acquire extend release lease locked owned aacquire arelease all_of take_over"
LEASE = "token fence owner deadline remaining lost check extend hand_over"
NAMES = {
    "lock": ("policy.lock.PolicyLock", LOCK),
    "locks[alias]": (
        "lease.LockStore",
        "lock all_of semaphore read_write inspect break_lock probe",
    ),
    "Options of a lock": ("lease.lock.LockOptions", OPTIONS),
    "Lease": ("Lease", LEASE),
    "locked": ("locked", ""),
    "Fenced": ("models.Fenced", "fenced_update not_newer"),
    "Attributes of LockTimeout": ("LockTimeout", "holder since"),
}
"""The public names of `locking`, each with its object and the members that users need."""
TITLES = {
    "counts_in_store": "re-entry count in store",
    "session_bound": "ends with session",
    "survives_minority": "survives loss of a minority",
    "shared": "semaphore, read-write lock",
}
"""Columns of the table of properties whose names alone say too little."""


def plain(text: str | None) -> str:
    """Return a text as one cell of a table."""
    return " ".join((text or "").split()).replace("|", "\\|")


def signature(of: Any) -> str:
    """Return the arguments with their defaults, without types; nothing for an attribute."""
    found = str(inspect.signature(of)) if callable(of) else ""
    return re.sub(r""": ('[^']*'|"[^"]*")| -> .*|self(, )?""", "", found).replace(" = ", "=")


def row(of: Any, name: str) -> tuple[str, str]:
    """Return a member with its docstring, which stands below an attribute."""
    below = rf'^ +(?:self\.)?{name}\b[^\n(]*[:=][^\n]*\n +"""(.*?)"""'
    written = re.search(below, inspect.getsource(of), re.M | re.S)
    found = getattr(of, name, None)
    return f"`{name}{signature(found)}`", plain(written[1] if written else inspect.getdoc(found))


def names() -> str:
    """Return a section for each public name, with the first paragraph of its docstring."""
    text = ""
    for title, (path, members) in NAMES.items():
        of = import_string(f"locking.{path}")
        is_called = inspect.isfunction(of) or title == "lock"
        call = f"`{title}{signature(of)}`\n\n" if is_called else ""
        about, *_details = (inspect.getdoc(of) or "").split("\n\n")
        text += f"### {title}\n\n{call}{about}\n\n"
        if rows := [row(of, name) for name in members.split()]:
            text += marked.table(["name", "meaning"], rows) + "\n"
    return text


def options() -> str:
    """Return a table of the OPTIONS of all backends."""
    rows = [
        (f"`{alias}`", f"`{name}`", f"`{one.default!r}`", one.expected)
        for alias, path in BACKENDS.items()
        for name, one in import_string(f"locking.backends.{path}").known_options.items()
    ]
    return marked.table(["backend", "option", "default", "accepts"], rows)


def errors() -> str:
    """Return a table of the errors."""
    found = [one for one in vars(exceptions).values() if hasattr(one, "__cause__")][1:]
    rows = [(f"`{one.__name__}`", plain(one.__doc__)) for one in found]
    return marked.table(["error", "meaning"], rows)


def capabilities() -> dict[str, Capabilities]:
    """Return what each backend declares, by alias."""
    return {
        alias: import_string(f"locking.backends.{path}").capabilities
        for alias, path in BACKENDS.items()
    }


def properties() -> str:
    """Return a table of the properties of all backends."""
    names = [one.name for one in fields(Capabilities) if one.type == "bool"]
    rows = []
    for alias, declared in capabilities().items():
        marks = ("yes" if getattr(declared, name) else "-" for name in names)
        rows.append([f"`{alias}`", declared.exclusion, *marks])
    titles = (TITLES.get(name, name.replace("_", " ")) for name in names)
    return marked.table(["backend", "excludes", *titles], rows)


PARTS = {
    "names": (REFERENCE, names),
    "options": (REFERENCE, options),
    "errors": (REFERENCE, errors),
    "lock_table": (LOCKS, properties),
}

if __name__ == "__main__":
    for part, (page, text) in PARTS.items():
        marked.write(page, part, text())
