"""Rounds of measurements, their medians, and the targets that they must meet."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from operator import eq, ge, le
from statistics import median
from typing import Any, NamedTuple

from django.utils.translation import gettext as _

Row = dict[str, Any]
Lines = Mapping[str, Row]
"""Lines by name. Each has the `rounds` and their medians."""
Columns = Mapping[str, tuple[str, Callable[[Any], str]]]
"""By figure: the heading, and the function that returns its text."""
COMPARE: dict[str, Callable[[float, float], bool]] = {">=": ge, "<=": le, "=": eq}


class Target(NamedTuple):
    """A limit for a figure of a line, or for its ratio to the same figure of another line."""

    text: str
    line: str
    figure: str
    sign: str = "="
    """">=", "<=" or "="."""
    limit: float | None = None
    """None: the figure is only shown."""
    other: str = ""

    def value(self, lines: Lines) -> float | None:
        """Return the figure or the ratio; None if it was not measured.

        A ratio is the median of the rounds' ratios: other load on the machine affects both sides.
        """
        row = lines.get(self.line, {})
        if not self.other:
            return row.get(self.figure)
        others = _values(lines.get(self.other, {}), self.figure)
        pairs = zip(_values(row, self.figure), others, strict=False)
        ratios = [one / reference for one, reference in pairs if reference]
        return median(ratios) if ratios else None


def duration(seconds: float) -> str:
    """Return a duration in the active language, below 0.1 s in milliseconds."""
    return _("%.1f s") % seconds if seconds >= 0.1 else _("%.0f ms") % (seconds * 1000)


def grouped(values: Row) -> Row:
    """Return values for a text: whole numbers as texts, with a comma between thousands."""
    return {name: f"{one:,}" if type(one) is int else one for name, one in values.items()}


def _values(row: Row, figure: str) -> list[float]:
    return [one[figure] for one in row.get("rounds", ()) if figure in one]


def met(targets: Iterable[Target], lines: Lines) -> list[Row]:
    """Return the targets with their values; `met` is None for what was not measured."""
    found = []
    for one in targets:
        if one.limit is not None:
            value = one.value(lines)
            is_met = None if value is None else COMPARE[one.sign](value, one.limit)
            shown = None if value is None else round(value, 3)
            text = f"{one.text} {one.sign} {one.limit:g}"
            found.append({"target": text, "value": shown, "met": is_met})
    return found


def summary(rounds: Sequence[Row], worst: Collection[str] = ()) -> Row:
    """Return the medians of the rounds' figures, the maximum of those in `worst`.

    Lists are joined, counts in a dict added.
    """
    found: Row = {}
    for name in dict.fromkeys(chain.from_iterable(rounds)):
        values = [one[name] for one in rounds if name in one]
        if isinstance(values[0], dict):
            found[name] = dict(sum(map(Counter, values), Counter[str]()))
        elif isinstance(values[0], list):
            found[name] = list(dict.fromkeys(chain.from_iterable(values)))
        else:
            found[name] = round((max if name in worst else median)(values), 4)
    return found
