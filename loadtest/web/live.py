"""The part of a running load test's page that is replaced four times a second."""

from itertools import pairwise
from math import ceil
from typing import Any

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from loadtest.charts import curves, svg
from loadtest.charts.bars import BAD, GOOD, MARGIN, WIDTH
from loadtest.load import report
from loadtest.models import LabRun

MOST_DOTS, COLUMNS, PITCH, RADIUS = 200, 25, 16.0, 5.0


def context(run: LabRun) -> dict[str, Any]:
    """Return the template context of a load test that has no report yet."""
    over, now = run.progress.get("over", []), run.progress.get("run")
    found = {"so_far": report.sentence(over) if over else "", "oversold": ""}
    if now is None:
        return found
    backend = now["backend"]
    lock = _("With %(lock)s") % {"lock": report.TITLES.get(backend, backend)}
    guard = _("Without a lock") if backend == "none" else lock
    # The curve of a guard is that of its run under way, or else of its worst run.
    others = [one for one in over if (one["backend"], one["discipline"]) != _guard(now)]
    return {
        **found,
        "sentence_now": _("%(guard)s: %(sold)s sold of %(stock)s in stock.")
        % {"guard": guard, **now},
        "curve": curves.sold_over_time([*others, now]),
        "dots": dots(now),
        "oversold": "{backend}-{discipline}-{repeat}".format(**now) if now["oversold"] else "",
    }


def _guard(run: dict[str, Any]) -> tuple[str, str]:
    return run["backend"], run["discipline"]


def _counts(run: dict[str, Any]) -> list[tuple[str, int, str, dict[str, object]]]:
    """Return words, number of buyers, sign and pen of each state that a buyer may be in."""
    bought = min(run["sold"], run["stock"])
    refused = max(0, run["served"] - run["sold"])
    line = {"fill": "none", "stroke_width": 1.5}
    return [
        (_("bought"), bought, "disc", {"fill": GOOD}),
        (_("bought beyond the stock"), run["oversold"], "triangle", {"fill": BAD}),
        (_("refused"), refused, "cross", {**line, "stroke": "currentColor"}),
        (
            _("waiting"),
            max(0, run["buyers"] - max(run["served"], run["sold"])),
            "ring",
            {**line, "stroke": "currentColor", "stroke_opacity": 0.5},
        ),
    ]


def _sign(name: str, x: float, y: float) -> str:
    """Return the path of a sign around a point."""
    r = RADIUS
    if name == "cross":
        r *= 0.7
        return f"M{x - r:g} {y - r:g}l{2 * r:g} {2 * r:g}m0 {-2 * r:g}l{-2 * r:g} {2 * r:g}"
    if name == "triangle":
        return f"M{x:g} {y - r:g}l{r:g} {2 * r:g}h{-2 * r:g}z"
    return f"M{x - r:g} {y:g}a{r:g} {r:g} 0 1 0 {2 * r:g} 0a{r:g} {r:g} 0 1 0 {-2 * r:g} 0"


def dots(run: dict[str, Any]) -> SafeString:
    """Return a grid of signs, each of one or several buyers, and its legend."""
    counts, buyers = _counts(run), run["buyers"]
    per_dot = ceil(buyers / MOST_DOTS)
    ends = [0]
    for _words, count, _name, _pen in counts:
        ends.append(ends[-1] + count)
    drawing = svg.Drawing()
    top = ceil(ceil(buyers / per_dot) / COLUMNS) * PITCH + PITCH
    for row, ((words, count, name, pen), (begin, end)) in enumerate(
        zip(counts, pairwise(ends), strict=True)
    ):
        places = [divmod(n, COLUMNS) for n in range(ceil(begin / per_dot), ceil(end / per_dot))]
        path = [_sign(name, MARGIN + PITCH * (x + 0.5), PITCH * (y + 0.5)) for y, x in places]
        x, y = MARGIN + PITCH / 2 + (row % 2) * 0.42 * WIDTH, top + 22 * (row // 2)
        drawing.add("path", d="".join(path) + _sign(name, x, y), **pen)
        drawing.text(x + 12, y + 4, f"{words}: {count}")
    if per_dot > 1:
        drawing.text(MARGIN, top + 48, _("One sign stands for %s buyers.") % per_dot)
    size = WIDTH, top + 16 + 22 * (2 if per_dot > 1 else 1)
    label = " · ".join(f"{words}: {count}" for words, count, _name, _pen in counts)
    return svg.frame(label, size, drawing.parts, font_size=13)
