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
DELETE = (TEXTBOOK, "self._client.delete(self.prefix + claim.name)")
STORES: dict[str, tuple[Place, Place]] = {
    "none": ((f"{BACKENDS}/none.py", "return Grant("), (f"{BACKENDS}/none.py", "def release")),
    "process": (
        (f"{BACKENDS}/process.py", "owned = self._owned.get("),
        (f"{BACKENDS}/process.py", "del self._owned[name]"),
    ),
    "redis": (
        (f"{BACKENDS}/lua/redis_take.lua", "redis.call('HMGET', lock, 'owner'"),
        (f"{BACKENDS}/lua/redis_release.lua", "redis.call('DEL', lock"),
    ),
    "redlock": (
        (f"{BACKENDS}/redlock/backend.py", 'pack("SET", key'),
        (f"{BACKENDS}/lua/redlock_release.lua", "redis.call('DEL'"),
    ),
    "zookeeper": (
        (f"{BACKENDS}/zookeeper/backend.py", "request = Create2("),
        (f"{BACKENDS}/zookeeper/backend.py", "session.client.delete_async(path)"),
    ),
    "database": (
        (f"{BACKENDS}/database/sql.py", 'f"UPDATE {TABLE} SET token'),
        (f"{BACKENDS}/database/sql.py", "SET owner = ''"),
    ),
    "mysql_row": (
        (f"{RECIPES}/mysql_row.py", "insert = f"),
        (f"{RECIPES}/mysql_row.py", '"DELETE FROM recipe_lock WHERE resource_name = %s", name'),
    ),
    "herd": (
        (f"{RECIPES}/zookeeper_herd.py", "request = Create2("),
        (f"{BACKENDS}/zookeeper/backend.py", "session.client.delete_async(path)"),
    ),
    "setnx": ((TEXTBOOK, "return bool(self._client.setnx("), DELETE),
    "setnx_expire": ((TEXTBOOK, "if not self._client.setnx("), DELETE),
    "set_px": ((TEXTBOOK, "self._client.set(key"), DELETE),
}
"""By alias, the lines that acquire and release in the store."""
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
    store = STORES.get(RECIPE_OF.get(guard, alias))
    match event["do"], event.get("type"):
        case "acquire", "invoke" if store:
            return _find(*store[0])
        case "release", "invoke" if store:
            return _find(*store[1])
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
        case "fault", "start" if event["what"] == "killed":
            return ENDED
        case "buy", ("ok" | "fail" | "unknown"):
            return ENDED
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
