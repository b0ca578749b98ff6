"""The bar chart of a load test: the units that each guard sold, against the stock."""

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
    """Return one bar per guard, of its worst run; `alone` adds a background for a file."""
    rows = [max(group, key=lambda run: run["oversold"]) for _name, group in by_guard(runs)]
    most = max(max(run["stock"], run["sold"]) for run in runs)
    unit = (WIDTH - 2 * MARGIN) / most
    height = TOP + ROW * len(rows)
    stripes = tag("rect", width=8, height=8, fill=BAD)
    stripes += tag("rect", width=3, height=8, fill="#fff", fill_opacity=0.5)
    hatch = {"patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
    drawing = svg.Drawing()
    drawing.add("defs", tag("pattern", stripes, id="over", width=8, height=8, **hatch))
    if alone:
        drawing.add("rect", width=WIDTH, height=height, fill="#fff")
    for number, run in enumerate(rows):
        _bar(drawing, run, TOP + ROW * number, unit)
    ink = {"fill": svg.INK} if alone else {}
    return svg.frame(sentence(runs), (WIDTH, height), drawing.parts, font_size=14, **ink)


def _bar(drawing: svg.Drawing, run: dict[str, Any], y: int, unit: float) -> None:
    """Draw the units sold, those beyond the stock hatched, and a mark at the end of the stock."""
    words = _("%(backend)s + %(discipline)s: sold %(sold)s, stock %(stock)s")
    if run["oversold"]:
        words = _(
            "%(backend)s + %(discipline)s: sold %(sold)s, stock %(stock)s, %(oversold)s too many"
        )
    within, end = min(run["sold"], run["stock"]) * unit, MARGIN + run["stock"] * unit - 1
    bar = {"y": y + 22, "height": BAR}
    over = {"x": MARGIN + within, "width": run["oversold"] * unit}
    drawing.text(MARGIN, y + 14, words % run)
    drawing.add("rect", x=MARGIN, width=within, fill=GOOD, **bar)
    drawing.add("rect", **over, fill="url(#over)", **bar)
    drawing.add("rect", x=end, y=y + 18, width=2, height=BAR + 8)
