"""A linear time axis, the crowded moments on it, and rows of labels that do not overlap."""

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple, TypeVar

from django.utils.translation import gettext as _

from loadtest.charts.timeline_data import Span
from loadtest.kernel.history import SECOND
from loadtest.kernel.holds import Lease

S = TypeVar("S", Span, Lease)
WIDTH, LEFT, RIGHT = 360, 10, 346
EDGE = RIGHT + 7
"""Where labels end: the right edge of a sign at the end of the axis."""
LABEL = 13
GLYPH = 6.0
"""The average width of a small letter; a Chinese one is twice as wide."""
SIGN = 13.0
"""The width of a sign: closer signs cover each other."""
CROWD = 8
"""Moments, closer than a sign, that are magnified even if there are no two signs among them."""
WIDEST = 70.0
"""The width above which a magnified part would hardly be larger than the chart."""
STEPS = [base * 10**power / SECOND for power in range(3, 15) for base in (1, 2, 5)]
"""Seconds between two ticks, from a microsecond on."""


class Axis:
    """Maps times to places, `axis(at)`; every pixel stands for the same time."""

    def __init__(self, first: int, length: int) -> None:
        self.first, self.length = first, max(1, length)

    def __call__(self, at: int) -> float:
        """Return the place of a time."""
        return LEFT + (RIGHT - LEFT) * (at - self.first) / self.length

    def __contains__(self, at: int) -> bool:
        """Return True for a time that the axis shows."""
        return self.first <= at <= self.first + self.length

    def clip(self, span: S) -> S | None:
        """Return the part of a span that the axis shows, or None."""
        begin, end = max(span.begin, self.first), min(span.end, self.first + self.length)
        return span._replace(begin=begin, end=end) if begin <= end else None

    def crowd(self, signs: Iterable[int], others: Iterable[int]) -> "Axis | None":
        """Return a magnified axis of the part with most moments that cover each other, or None.

        `others` are the ends of spans, which can be told apart even if they are close.
        """
        groups: list[list[int]] = [[]]
        marked = set(signs)
        for at in sorted(marked | set(others)):
            if groups[-1] and self(at) - self(groups[-1][-1]) >= SIGN:
                groups.append([])
            groups[-1].append(at)
        group = max(groups, key=lambda group: (len(marked.intersection(group)), len(group)))
        is_clear = len(marked.intersection(group)) < 2 and len(group) < CROWD
        if is_clear or self(group[-1]) - self(group[0]) > WIDEST:
            return None
        margin = max((group[-1] - group[0]) // 6, SECOND // 2000)
        first = max(group[0] - margin, self.first)
        return Axis(first, group[-1] + margin - first)

    def ticks(self, start: int) -> list[tuple[float, str]]:
        """Return the places and labels of round times since `start`, which have room."""
        seconds = self.length / SECOND
        room = 1.3 * width(_("%s ms") % 1000)
        step = next(s for s in STEPS if s * (RIGHT - LEFT) / seconds >= room)
        offset = (self.first - start) / SECOND
        found = []
        for n in range(ceil(offset / step), int((offset + seconds) / step) + 1):
            at = start + round(n * step * SECOND)
            is_short = offset + seconds < 0.5
            label = _("%s ms") % f"{n * step * 1000:g}" if is_short else _("%s s") % f"{n * step:g}"
            found.append((self(at), label))
        return found


class Label(NamedTuple):
    """A text and its place; a flag hangs at a line, at `line`, from what it names."""

    x: float
    y: float
    anchor: str
    line: float | None
    text: str
    attributes: dict[str, object]


class Labels:
    """Labels that do not overlap: centred below what they name, or flags where that is crowded."""

    def __init__(self, top: float) -> None:
        self.top = top
        self.wanted: list[tuple[float, str, dict[str, object]]] = []

    def add(self, x: float, text: str, **attributes: object) -> None:
        """Ask for a label near x."""
        self.wanted.append((x, text, attributes))

    def placed(self) -> list[Label]:
        """Return all labels: each in the highest row where it covers no text and no line."""
        centred = [_extent(*anchored(x, text), text) for x, text, _more in self.wanted]
        found = []
        for (x, text, attributes), extent in zip(self.wanted, centred, strict=True):
            is_flag = sum(_meet(extent, other) for other in centred) > 1
            place, anchor = flagged(x, text) if is_flag else anchored(x, text)
            found.append(Label(place, self.top, anchor, x if is_flag else None, text, attributes))
        # The flag furthest out is highest, so that the lines of the others do not cross it.
        found.sort(key=lambda one: (one.anchor == "end", one.x if one.anchor == "end" else -one.x))
        rows: list[list[tuple[float, float]]] = [[] for _one in found]
        for n, one in enumerate(found):
            extent = _extent(one.x, one.anchor, one.text)
            free = [not any(_meet(extent, other) for other in row) for row in rows].index(True)
            rows[free].append(extent)
            if one.line is not None:
                for row in rows[:free]:
                    row.append((one.line - 1, one.line + 1))
            found[n] = one._replace(y=self.top + free * LABEL)
        return found


def _extent(x: float, anchor: str, text: str) -> tuple[float, float]:
    """Return the left and right edge of a text, with a margin."""
    left = x - width(text) * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] - 3
    return left, left + width(text) + 6


def _meet(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def flagged(x: float, text: str) -> tuple[float, str]:
    """Return x and anchor of a text beside a line at x: right of it, if there is room."""
    return (x + 2, "start") if x + 2 + width(text) <= EDGE else (x - 2, "end")


def anchored(x: float, text: str) -> tuple[float, str]:
    """Return x and anchor of a text around x; near an edge of the chart it begins or ends there."""
    half = width(text) / 2
    if x - half < LEFT:
        return LEFT, "start"
    return (EDGE, "end") if x + half > EDGE else (x, "middle")


def width(text: str) -> float:
    """Return the approximate width of a small text."""
    return sum(GLYPH if ord(letter) < 0x2E80 else 2 * GLYPH for letter in text)


def wrapped(text: str, most: float) -> list[str]:
    """Return lines of at most about `most` units."""
    lines = [""]
    for word in text.replace("。", "。 ").split(" "):
        if lines[-1] and width(f"{lines[-1]} {word}") > most:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines
