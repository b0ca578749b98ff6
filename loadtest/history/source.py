"""The line of source that a process executes at each recorded event, read from the files."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from django.conf import settings

from loadtest.history.recorder import Event

BACKENDS, RECIPES = "locking/backends", "loadtest/recipes"
TEXTBOOK = f"{RECIPES}/redis_textbook.py"
STOCK, LEASE = "inventory/stock.py", "locking/lease/lease.py"
Place = tuple[str, str]
"""A file, and a part of one of its lines."""
ACQUIRE: dict[str, Place] = {
    "none": (f"{BACKENDS}/none.py", "return Grant("),
    "process": (f"{BACKENDS}/process.py", "owned = self._owned.get("),
    "redis": (f"{BACKENDS}/lua/redis_take.lua", "redis.call('HMGET', lock, 'owner'"),
    "redlock": (f"{BACKENDS}/redlock/backend.py", 'pack("SET", key'),
    "zookeeper": (f"{BACKENDS}/zookeeper/backend.py", "request = Create2("),
    "herd": (f"{RECIPES}/zookeeper_herd.py", "request = Create2("),
    "database": (f"{BACKENDS}/database/sql.py", 'f"UPDATE {TABLE} SET token'),
    "mysql_row": (f"{RECIPES}/mysql_row.py", "insert = f"),
    "setnx": (TEXTBOOK, "return bool(self._client.setnx("),
    "setnx_expire": (TEXTBOOK, "if not self._client.setnx("),
    "set_px": (TEXTBOOK, "self._client.set(key"),
}
"""By alias, the line that asks the store for the lock."""
RELEASE: dict[str, Place] = {
    "none": (f"{BACKENDS}/none.py", "def release"),
    "process": (f"{BACKENDS}/process.py", "del self._owned[name]"),
    "redis": (f"{BACKENDS}/lua/redis_release.lua", "redis.call('DEL', lock"),
    "redlock": (f"{BACKENDS}/lua/redlock_release.lua", "redis.call('DEL'"),
    "database": (f"{BACKENDS}/database/sql.py", "SET owner = ''"),
    "mysql_row": (
        f"{RECIPES}/mysql_row.py",
        '"DELETE FROM recipe_lock WHERE resource_name = %s", name',
    ),
    **dict.fromkeys(("setnx", "setnx_expire", "set_px"), (TEXTBOOK, "client.delete(self.prefix")),
    **dict.fromkeys(
        ("zookeeper", "herd"), (f"{BACKENDS}/zookeeper/backend.py", "delete_async(path)")
    ),
}
"""By alias, the line that releases it."""
RECIPE_OF = {"SET NX PX, polled": "set_px", "ZooKeeper, all watch the holder": "herd"}
"""The recipes that scenarios run under the alias of the backend that repairs them, by guard."""
WRITES: dict[str, Place] = {
    "conditional": (STOCK, "SET quantity = quantity + %s, fence_epoch"),
    "fenced": (STOCK, "SET quantity = %s, fence_epoch"),
    "naive": (STOCK, "WRITE = "),
}


class SourceLine(NamedTuple):
    """A line of code and its place, "inventory/stock.py:46"."""

    place: str
    code: str


ENDED = SourceLine("", "")
"""After the end of a purchase or of its process."""


def line_of(event: Event, *, alias: str = "", guard: str = "") -> SourceLine | None:
    """Return the line that the event's process executes, None if it goes on with the one before.

    `alias` is that of the lock; `guard` names the lock and the write strategy in words.
    """
    store = RECIPE_OF.get(guard, alias)
    match event["do"], event.get("type"):
        case "acquire", "invoke" if store in ACQUIRE:
            return _find(*ACQUIRE[store])
        case "release", "invoke" if store in RELEASE:
            return _find(*RELEASE[store])
        case "renew", _any:
            return _find(LEASE, "= self.backend.extend(")
        case "lost", _any:
            return _find(LEASE, "self.on_lost(self)")
        case "read", _any:
            return _find(STOCK, "quantity, epoch, token = rows.get(")
        case "write", _any:
            strategy = next((name for name in WRITES if name in guard), "naive")
            return _find(*WRITES[strategy])
        case "fault", "start" if event["what"] in ("paused", "GIL held", "works"):
            return _find(STOCK, 'reach("stock.read"')
        case ("fault", "start") | ("buy", ("ok" | "fail" | "unknown")):
            return ENDED if event.get("what", "killed") == "killed" else None
    return None


@cache
def _find(path: str, part: str) -> SourceLine | None:
    """Return the first line of a file with this part; None if it was changed, which a test finds.

    A course whose other lines are right is worth more than an error page.
    """
    for number, line in enumerate((Path(settings.BASE_DIR) / path).read_text().splitlines(), 1):
        if part in line:
            return SourceLine(f"{path}:{number}", line.strip())
    return None
