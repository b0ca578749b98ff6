"""The OPTIONS of a backend: their names, defaults, and the values that they accept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from locking.exceptions import unknown
from locking.names import is_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One key of OPTIONS."""

    default: Any
    expected: str
    """What it accepts, for the message about a wrong value."""
    accepts: Callable[[Any], bool]


def seconds(default: float, *, at_most: float = math.inf, may_be_zero: bool = False) -> Option:
    """Return an option that is a time in seconds."""

    def accepts(value: Any) -> bool:
        lowest = is_number(value) and (value > 0 or (may_be_zero and value == 0))
        return lowest and value <= at_most and value < math.inf

    limit = "" if math.isinf(at_most) else f", at most {at_most:g}"
    expected = f"seconds{', 0 or more' if may_be_zero else ' above 0'}{limit}"
    return Option(default=default, expected=expected, accepts=accepts)


def count(default: int) -> Option:
    """Return an option that is a whole number."""

    def accepts(value: Any) -> bool:
        return type(value) is int and value >= 0

    return Option(default=default, expected="a whole number, 0 or more", accepts=accepts)


def text(default: str) -> Option:
    """Return an option that is a text without spaces, e.g. a prefix of keys."""

    def accepts(value: Any) -> bool:
        return isinstance(value, str) and value.isprintable() and not set(value) & set(" {}")

    return Option(default=default, expected="a text without spaces or braces", accepts=accepts)


def path(default: str) -> Option:
    """Return an option that is a path below the root."""

    def accepts(value: Any) -> bool:
        return isinstance(value, str) and value.startswith("/") and bool(value.strip("/"))

    return Option(default=default, expected="a path such as /locks", accepts=accepts)


def problems(known: Mapping[str, Option], given: Any) -> Iterator[tuple[str, str]]:
    """Yield the number of the check and a sentence for each mistake in `given` OPTIONS."""
    if not isinstance(given, Mapping | None):
        yield "E010", f"OPTIONS is a {type(given).__name__}: give a dict."
        return
    for name, value in (given or {}).items():
        if name not in known:
            yield "E011", unknown("key in OPTIONS:", name, known)
        elif not known[name].accepts(value):
            shown = "..." if name == "PASSWORD" else f"{value!r:.60}"
            yield "E012", f"{name} is {shown}: give {known[name].expected}."
