"""A chart of rates on a logarithmic axis: a line for each series, a place for each category."""

from collections.abc import Sequence
from math import ceil, floor, log10

from django.utils.safestring import SafeString

from loadtest.charts import svg
from loadtest.charts.curves import END, LEGEND, LINES
from loadtest.charts.svg import Drawing

Series = tuple[str, list[float]]
"""A name, and the rate of each category."""
WIDTH, LEFT, RIGHT, TOP, PLOT = 720, 60, 700, 44, 300


def by_category(title: str, categories: Sequence[str], series: Sequence[Series]) -> SafeString:
    """Return the chart of the series on white paper; rates below 1 are drawn as 1."""
    rates = [max(1.0, rate) for _name, found in series for rate in found]
    low, high = floor(log10(min(rates))), max(ceil(log10(max(rates))), floor(log10(min(rates))) + 1)

    def x(place: int) -> float:
        return LEFT + 30 + place * (RIGHT - LEFT - 60) / max(1, len(categories) - 1)

    def y(rate: float) -> float:
        return PLOT - (log10(max(1.0, rate)) - low) / (high - low) * (PLOT - TOP)

    height = PLOT + 40 + LEGEND * len(series)
    drawing = Drawing()
    drawing.add("rect", width=WIDTH, height=height, fill="#fff")
    drawing.text(LEFT, 22, title, font_size=16, font_weight="bold")
    for power in range(low, high + 1):
        for base in (1, 2, 5) if power < high else (1,):
            rate = base * 10**power
            drawing.line(LEFT, y(rate), RIGHT, y(rate), stroke_opacity=0.15)
            drawing.text(LEFT - 6, y(rate) + 4, f"{rate:,g}", **END)
    for place, name in enumerate(categories):
        drawing.text(x(place), PLOT + 20, name, text_anchor="middle")
    for row, (name, found) in enumerate(series):
        colour, dash = LINES[row % len(LINES)]
        pen = {"stroke": colour, "stroke_dasharray": dash or "none"}
        points = [(x(place), y(rate)) for place, rate in enumerate(found)]
        text = " ".join(f"{one:.1f},{other:.1f}" for one, other in points)
        drawing.add("polyline", points=text, fill="none", stroke_width=2.5, **pen)
        for (one, other), rate in zip(points, found, strict=True):
            hint = svg.tag("title", f"{name}: {rate:,.0f}")
            drawing.add("circle", hint, cx=one, cy=other, r=4, fill=colour)
        top = PLOT + 40 + LEGEND * row
        drawing.line(LEFT, top, LEFT + 34, top, stroke_width=3, **pen)
        drawing.text(LEFT + 42, top + 4, name)
    return svg.frame(title, (WIDTH, height), drawing.parts, font_size=13, fill=svg.INK)
