"""Lines of the source that the course shows, read from the files themselves."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple

from django.conf import settings


class Line(NamedTuple):
    """A line of code; its sign is "-" if it is removed, "!" if it has the fault, or "+"."""

    sign: str
    text: str


@dataclass(frozen=True)
class Excerpt:
    """The lines of a file from the one that contains `first` to the next one with `last`."""

    path: str
    """Relative to the project's folder."""
    first: str
    last: str
    faulty: str = ""
    """A part of the line with the fault."""

    def lines(self) -> list[str]:
        """Return the lines, dedented. Raise ValueError if the file no longer contains them."""
        source = (Path(settings.BASE_DIR) / self.path).read_text().splitlines()
        start = _find(source, self.first, 0)
        found = source[start : _find(source, self.last, start) + 1]
        return inspect.cleandoc("\n".join(["", *found])).splitlines()


def _find(lines: list[str], part: str, start: int) -> int:
    for at in range(start, len(lines)):
        if part in lines[at]:
            return at
    raise ValueError(f"no line contains {part!r}")


def diff(broken: Excerpt, repaired: Excerpt) -> Iterator[Line]:
    """Yield the broken lines, the faulty one marked, and the lines of the repair."""
    old, new = broken.lines(), repaired.lines()
    faulty = _find(old, broken.faulty, 0)
    for change, begin, end, new_begin, new_end in SequenceMatcher(a=old, b=new).get_opcodes():
        sign = "" if change == "equal" else "-"
        yield from (Line("!" if at == faulty else sign, old[at]) for at in range(begin, end))
        if change != "equal":
            yield from (Line("+", text) for text in new[new_begin:new_end])
