"""Lines of the source that pages show, read from the files: excerpts, and the line of an event."""

import inspect
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings

from loadtest.kernel.history import Event

LINES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("source.toml").read_text("utf-8"))
RECIPE_OF = {"SET NX PX, polled": "set_px", "ZooKeeper, all watch the holder": "herd"}
"""The recipes that scenarios run under the alias of the backend that repairs them, by guard."""


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
    store, other, place = RECIPE_OF.get(guard, alias), LINES["other"], None
    strategy = next((name for name in LINES["write"] if name in guard), "naive")
    match event["do"], event.get("type"):
        case "acquire", "invoke":
            place = LINES["acquire"].get(store)
        case "release", "invoke" if released == "early":
            place = other["early release"]
        case "release", "invoke":
            is_refused = released == "refused" and store in LINES["refused"]
            place = LINES["refused" if is_refused else "release"].get(store)
        case "step", _any if event.get("code"):
            place = event["code"]
        case "step", _any if "lane" not in event:
            return ENDED
        case ("renew" | "lost") as do, _any:
            place = other[do]
        case "read", _any:
            claims = "fenced" in guard and "redlock" not in guard  # whose tokens claim no row
            place = other["claim" if claims else "read"]
        case "write", "fail" if event.get("error") == "OutOfStock":
            place = other["sold out"]
        case "write", kind:
            place = LINES["refused" if kind == "fail" else "write"].get(strategy)
        case "buy", "ok" if event.get("replayed"):
            place = other["replayed"]
        case "fault", "start" if event["what"] in ("paused", "GIL held", "works"):
            place = other["stalled"]
        case "fault", "start" if event["actor"] in LINES["killed"].get(guard, ()):
            place = LINES["killed"][guard][event["actor"]]
        case ("fault", "start") | ("buy", ("ok" | "fail" | "unknown")):
            return ENDED if event.get("what", "killed") == "killed" else None
    return _line(*place) if place else None


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
