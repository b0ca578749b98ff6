"""Lines of the source that pages show, read from the files: excerpts, and the line of an event."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import NamedTuple

from django.conf import settings

from loadtest.kernel.history import Event

BACKENDS, RECIPES = "locking/backends", "loadtest/recipes"
TEXTBOOK = f"{RECIPES}/redis_textbook.py"
STOCK, LEASE = "inventory/stock.py", "locking/lease/lease.py"
Place = tuple[str, ...]
"""A file, a part of one of its lines, and a part of the last line if there are several."""
ACQUIRE: dict[str, Place] = {
    "none": (f"{BACKENDS}/none.py", "return Grant("),
    "process": (f"{BACKENDS}/process.py", "owned = self._owned.get("),
    "redis": (f"{BACKENDS}/lua/redis_take.lua", "redis.call('HMGET', lock, 'owner'"),
    "redlock": (f"{BACKENDS}/redlock/backend.py", 'pack("SET", key'),
    "zookeeper": (f"{BACKENDS}/zookeeper/backend.py", "request = Create2("),
    "herd": (f"{RECIPES}/zookeeper_herd.py", "request = Create2("),
    "database": (f"{BACKENDS}/database/sql.py", 'take = f"""UPDATE locking_lockrow'),
    "mysql_session": (f"{BACKENDS}/mysql_session.py", "attempt = f"),
    "mysql_row": (f"{RECIPES}/mysql_row.py", "insert = f"),
    "setnx": (TEXTBOOK, "return bool(self._client.setnx("),
    "setnx_expire": (TEXTBOOK, "if not self._client.setnx("),
    "set_px": (TEXTBOOK, "self._client.set(key"),
}
"""By alias, the line that asks the store for the lock."""
RELEASE: dict[str, Place] = {
    "none": (f"{BACKENDS}/none.py", "def release"),
    "process": (f"{BACKENDS}/process.py", "del self._owned[name]"),
    "redis": (f"{BACKENDS}/lua/redis_release.lua", "if not grant_next(holder)", "'DEL', lock"),
    "redlock": (f"{BACKENDS}/lua/redlock_keep.lua", "redis.call('GET'", "'PEXPIRE'"),
    "database": (f"{BACKENDS}/database/sql.py", "SET owner = ''"),
    "mysql_session": (f"{BACKENDS}/mysql_session.py", "free = "),
    "set_px": (TEXTBOOK, "client.delete(self.prefix"),
    **dict.fromkeys(
        ("zookeeper", "herd"), (f"{BACKENDS}/zookeeper/backend.py", "delete_async(path)")
    ),
}
"""By alias, the line that releases it; in the recordings, no other recipe's holder does."""
REFUSED: Place = (f"{BACKENDS}/lua/redis_release.lua", "if holder and holder")
"""The line of Redis that finds another owner's lock instead."""
SALES, LAST = f"{RECIPES}/flash_sale.py", "shop, the message is deleted last"
KILLED: dict[tuple[str, str], Place] = {
    ("DECR, then RPUSH; LPOP", "buyer A"): (SALES, "reach(RESERVED)"),
    ("DECR, then RPUSH; LPOP", "consumer"): (SALES, "reach(POPPED)"),
    (LAST, "buyer A"): ("loadtest/load/own_sale.py", "reach(RESERVED)"),
    (LAST, "consumer"): ("shop/reservations/order_writer.py", 'reach("queued.read")'),
}
"""By guard and actor, the fail point at which a process is killed."""
RECIPE_OF = {"SET NX PX, polled": "set_px", "ZooKeeper, all watch the holder": "herd"}
"""The recipes that scenarios run under the alias of the backend that repairs them, by guard."""
WRITES = {
    "conditional": ("SET quantity = quantity + %s, fence_epoch", "AND (fence_epoch < %s"),
    "fenced": ("SET quantity = %s, fence_epoch", "WHERE id = %s AND fence_epoch = %s"),
    "naive": ("WRITE = ", ""),
}
"""By write strategy, the line that writes, and the one for which the row refuses a fence."""


class Line(NamedTuple):
    """A line of code; its sign is "-" if it is removed, "!" if it has the fault, or "+"."""

    sign: str
    text: str


@dataclass(frozen=True)
class Excerpt:
    """The lines of a file from the one that contains `first` to the next one with `last`.

    Its methods raise ValueError if the file no longer contains them.
    """

    path: str
    """Relative to the project's folder."""
    first: str
    last: str = ""
    """By default, the excerpt is one line."""
    faulty: str = ""
    """A part of the line with the fault; by default, that is the first one."""
    then: "Excerpt | None" = None
    """More lines."""

    def _source(self) -> list[str]:
        return (Path(settings.BASE_DIR) / self.path).read_text().splitlines()

    @property
    def number(self) -> int:
        """The number of the first line."""
        return _find(self._source(), self.first) + 1

    @property
    def place(self) -> str:
        """The file and the number of the first line, "inventory/stock.py:46"."""
        return f"{self.path}:{self.number}"

    def lines(self) -> list[str]:
        """Return the lines, dedented."""
        source = self._source()
        start = _find(source, self.first)
        found = source[start : _find(source, self.last, start) + 1]
        lines = inspect.cleandoc("\n".join(["", *found])).splitlines()
        return [*lines, *self.then.lines()] if self.then else lines


def _find(lines: list[str], part: str, start: int = 0) -> int:
    for at in range(start, len(lines)):
        if part in lines[at]:
            return at
    raise ValueError(f"no line contains {part!r}")


def diff(broken: Excerpt, repaired: Excerpt) -> Iterator[Line]:
    """Yield the broken lines, the faulty one marked, and the lines of the repair."""
    old, new = broken.lines(), repaired.lines()
    if broken.faulty != "reach(":  # the other fail points only help the lab to stop a process
        old = [line for line in old if "reach(" not in line]
    faulty = _find(old, broken.faulty)
    for change, begin, end, new_begin, new_end in SequenceMatcher(a=old, b=new).get_opcodes():
        sign = "" if change == "equal" else "-"
        yield from (Line("!" if at == faulty else sign, old[at]) for at in range(begin, end))
        if change != "equal":
            yield from (Line("+", text) for text in new[new_begin:new_end])


class SourceLine(NamedTuple):
    """A line of code and its place, "inventory/stock.py:46"."""

    place: str
    code: str


ENDED = SourceLine("", "")
"""After the end of a purchase or of its process, or when a buyer is told something."""


def line_of(
    event: Event, *, alias: str = "", guard: str = "", released: str = ""
) -> SourceLine | None:
    """Return the line that the event's process executes, None if it goes on with the one before.

    `alias` is that of the lock; `guard` names the lock and the write strategy in words. `released`
    says that a release was "refused", or "early": its owner releases again later.
    """
    store = RECIPE_OF.get(guard, alias)
    match event["do"], event.get("type"):
        case "acquire", "invoke" if store in ACQUIRE:
            return _line(*ACQUIRE[store])
        case "release", "invoke" if released == "early":
            return _line("loadtest/load/shop_worker.py", "lease.backend.release(")
        case "release", "invoke" if store in RELEASE:
            is_refused = released == "refused" and store == "redis"
            return _line(*(REFUSED if is_refused else RELEASE[store]))
        case "step", _any if event.get("code"):
            return _line(*event["code"])
        case "step", _any if "lane" not in event:
            return ENDED
        case "renew", _any:
            return _line(LEASE, "= self.backend.extend(")
        case "lost", _any:
            return _line(LEASE, "            on_lost(self)")
        case "read", _any:
            claims = "fenced" in guard and "redlock" not in guard  # whose tokens claim no row
            part = "fenced_update((fence" if claims else "quantity, epoch, token = rows.get("
            return _line(STOCK, part)
        case "write", kind:
            strategy = next((name for name in WRITES if name in guard), "naive")
            part = WRITES[strategy][kind == "fail"]
            is_over = event.get("error") == "OutOfStock"
            return _line(STOCK, "WHERE id = %s AND quantity >= %s" if is_over else part)
        case "buy", "ok" if event.get("replayed"):
            return _line("shop/purchase/place_order.py", "Placed(order=order, replayed=True")
        case "fault", "start" if event["what"] in ("paused", "GIL held", "works"):
            return _line(STOCK, 'reach("stock.read"')
        case "fault", "start" if (guard, event["actor"]) in KILLED:
            return _line(*KILLED[guard, event["actor"]])
        case ("fault", "start") | ("buy", ("ok" | "fail" | "unknown")):
            return ENDED if event.get("what", "killed") == "killed" else None
    return None


@cache
def _line(path: str, part: str, last: str = "") -> SourceLine | None:
    """Return the first line of a file with this part; None if it was changed, which a test finds.

    With `last`, the lines up to that one follow. A course whose other lines are right is worth more
    than an error page.
    """
    excerpt = Excerpt(path, part, last)
    try:
        return SourceLine(excerpt.place, " ".join(map(str.strip, excerpt.lines())))
    except ValueError:
        return None
