"""The picture of a load test: a bar for each guard against the stock there was. Plain SVG."""

from collections.abc import Sequence
from typing import Any

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from loadtest.charts import svg
from loadtest.charts.svg import tag
from loadtest.load.report import by_guard, sentence

WIDTH, MARGIN, TOP, ROW, BAR = 420, 10, 4, 58, 22
GOOD, BAD = "#1d7a4f", "#c0392b"


def draw(runs: Sequence[dict[str, Any]], *, alone: bool = False) -> SafeString:
    """One bar a guard, of its worst run. `alone`: a file with its own background."""
    rows = [max(group, key=lambda run: run["oversold"]) for _name, group in by_guard(runs)]
    unit = (WIDTH - 2 * MARGIN) / max(runs[0]["stock"], *(run["sold"] for run in rows))
    height = TOP + ROW * len(rows)
    stripes = tag("rect", width=8, height=8, fill=BAD)
    stripes += tag("rect", width=3, height=8, fill="#fff", fill_opacity=0.5)
    hatch = {"patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
    parts = [tag("defs", tag("pattern", stripes, id="over", width=8, height=8, **hatch))]
    if alone:
        parts.append(tag("rect", width=WIDTH, height=height, fill="#fff"))
    for number, run in enumerate(rows):
        parts += _bar(run, TOP + ROW * number, unit)
    ink = {"fill": svg.INK} if alone else {}
    return svg.picture(sentence(runs), (WIDTH, height), parts, font_size=14, **ink)


def _bar(run: dict[str, Any], y: int, unit: float) -> list[SafeString]:
    """What was sold, beyond the stock hatched; a mark stands where the stock ends."""
    words = _("%(backend)s + %(discipline)s: sold %(sold)s, stock %(stock)s") % run
    if run["oversold"]:
        words += ", " + _("%(oversold)s too many") % run
    within, end = min(run["sold"], run["stock"]) * unit, MARGIN + run["stock"] * unit - 1
    bar = {"y": y + 22, "height": BAR}
    return [
        tag("text", words, x=MARGIN, y=y + 14),
        tag("rect", x=MARGIN, width=within, fill=GOOD, **bar),
        tag("rect", x=MARGIN + within, width=run["oversold"] * unit, fill="url(#over)", **bar),
        tag("rect", x=end, y=y + 18, width=2, height=BAR + 8),
    ]
