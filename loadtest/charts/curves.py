"""What a load test looks like beside its bars: pieces sold over time, and how long buyers waited.

Plain SVG with presentation attributes only, so that page, offline file and PNG are one.
"""

from collections.abc import Sequence
from typing import Any

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from loadtest.charts import svg
from loadtest.charts.bars import BAD, BAR, GOOD, MARGIN, WIDTH, draw
from loadtest.charts.svg import INK, tag
from loadtest.load.report import by_guard, sentence

Run = dict[str, Any]
# Told apart without colour too: each has its own dashes. All are legible on white and on black.
LINES = (
    ("#d0512f", ""),
    ("#2f8f5b", ""),
    ("#3f7fc4", "6 3"),
    ("#9a62c4", "2 3"),
    ("#b7791f", "8 3 2 3"),
    ("#178b94", "4 2"),
    ("#c2557f", "1 2"),
    ("#7a808a", "10 4"),
)
LEFT, PLOT, ROW = 40, 190, 46
LEGEND = 22


def _svg(said: str, height: int, parts: Sequence[SafeString], ink: str) -> SafeString:
    return svg.picture(said, (WIDTH, height), parts, font_size=13, fill=ink)


def _shown(runs: Sequence[Run]) -> list[tuple[str, Run]]:
    """The worst run of each guard that ran."""
    groups = [
        (name, [run for run in group if run.get("sold_at")]) for name, group in by_guard(runs)
    ]
    return [(name, max(group, key=lambda run: run["oversold"])) for name, group in groups if group]


def sold_over_time(runs: Sequence[Run], *, ink: str = "currentColor") -> SafeString:
    """A line a guard; the stock is a dashed line across, a fault a mark from top to bottom."""
    shown = _shown(runs)
    if not shown:
        return SafeString("")
    seconds = max(max(run["sold_at"][-1][0] for _name, run in shown), 0.1)
    seconds = max([seconds, *(mark[0] for _name, run in shown for mark in run["marks"])])
    most = max(shown[0][1]["stock"], *(run["sold"] for _name, run in shown), 1)

    def x(at: float) -> float:
        return float(round(LEFT + at / seconds * (WIDTH - LEFT - MARGIN), 1))

    def y(pieces: float) -> float:
        return float(round(14 + (1 - pieces / most) * (PLOT - 14), 1))

    stock = shown[0][1]["stock"]
    parts = [
        _line(x(0), y(0), x(seconds), y(0)),
        _line(x(0), y(stock), x(seconds), y(stock), dash="5 4"),
        _text(LEFT - 4, y(stock) + 4, str(stock), anchor="end"),
        _text(LEFT - 4, y(0) + 4, "0", anchor="end"),
        _text(WIDTH - MARGIN, PLOT + 18, f"{seconds:.1f} s", anchor="end"),
        _text(LEFT, PLOT + 18, "0 s"),
    ]
    if most > stock:
        parts.append(_text(LEFT - 4, y(most) + 4, str(most), anchor="end"))
    for at, word in dict.fromkeys(tuple(mark) for mark in shown[-1][1]["marks"]):
        parts.append(_line(x(at), 14, x(at), PLOT, dash="2 2", stroke=BAD))
        is_right = x(at) > WIDTH * 0.7
        anchor = "end" if is_right else "start"
        parts.append(_text(x(at) + (-3 if is_right else 3), 12, word, anchor=anchor))
    for row, (name, run) in enumerate(shown):
        colour, dash = LINES[row % len(LINES)]
        points = _steps([(x(at), y(pieces)) for at, pieces in run["sold_at"]])
        top = PLOT + 40 + LEGEND * row
        parts += [
            tag("polyline", points=points, fill="none", stroke_width=2.5, **_pen(colour, dash)),
            _line(LEFT, top - 4, LEFT + 34, top - 4, dash=dash, stroke=colour, width=3),
            _text(LEFT + 42, top, f"{name}: {run['sold']} / {run['stock']}"),
        ]
    said = _("Units sold over time")
    return _svg(said, PLOT + 40 + LEGEND * len(shown), parts, ink)


def waits(runs: Sequence[Run], *, ink: str = "currentColor") -> SafeString:
    """A row a guard: how long buyers waited for their answer, half, 95 and 99 of 100."""
    shown = _shown(runs)
    if not shown:
        return SafeString("")
    longest = max(max(run["wait_ms"]["p99"] for _name, run in shown), 1)
    unit = (WIDTH - 2 * MARGIN) / longest
    parts = []
    for row, (name, run) in enumerate(shown):
        top = ROW * row
        wait = run["wait_ms"]
        said = "p50 {p50:.0f} · p95 {p95:.0f} · p99 {p99:.0f} ms".format(**wait)
        parts += [
            _text(MARGIN, top + 16, name),
            _text(WIDTH - MARGIN, top + 16, said, anchor="end"),
        ]
        for share, tall, opacity in (("p99", 4, ".45"), ("p95", 12, ".6"), ("p50", BAR - 2, "1")):
            box = {"y": top + 32 - tall / 2, "width": max(wait[share] * unit, 1), "height": tall}
            parts.append(tag("rect", x=MARGIN, **box, fill=GOOD, fill_opacity=opacity))
    return _svg(_("How long buyers waited"), ROW * len(shown), parts, ink)


def sheet(runs: Sequence[Run]) -> SafeString:
    """All three on white paper, for a PNG: the verdict, the bars, the lines, the waits."""
    parts, top = [], 16
    for line in _wrapped(sentence(runs)):
        top += 18
        parts.append(_text(MARGIN, top, line, size=15, weight="bold"))
    top += 12
    titles = ("", _("Units sold over time"), _("How long buyers waited"))
    charts = (draw(runs, alone=True), sold_over_time(runs, ink=INK), waits(runs, ink=INK))
    for title, chart in zip(titles, charts, strict=True):
        if not chart:
            continue
        if title:
            top += 26
            parts.append(_text(MARGIN, top, title, size=15, weight="bold"))
            top += 8
        height = int(chart.split('viewBox="0 0 ')[1].split('"')[0].split()[1])
        place = f'<svg y="{top}" width="{WIDTH}" height="{height}" '
        parts.append(SafeString(chart.replace("<svg ", place, 1)))
        top += height
    paper = tag("rect", width=WIDTH, height=top + MARGIN, fill="#fff")
    return _svg(sentence(runs), top + MARGIN, [paper, *parts], INK)


def png(runs: Sequence[Run], *, width: int = 3 * WIDTH) -> bytes:
    """The sheet as a picture, `width` pixels wide."""
    return svg.png(sheet(runs), width)


def _steps(points: Sequence[tuple[float, float]]) -> str:
    """A sale happens at once: from point to point along and up, never aslant."""
    found: list[tuple[float, float]] = []
    for x, y in points:
        if found:
            found.append((x, found[-1][1]))
        found.append((x, y))
    return " ".join(f"{x},{y}" for x, y in found)


def _wrapped(text: str, most: int = 44) -> list[str]:
    """Lines of about so many letters; a Chinese one is as wide as two."""
    lines, width = [""], 0
    for word in text.replace("。", "。 ").split(" "):
        wide = sum(2 if ord(letter) > 0x2E80 else 1 for letter in word) + 1
        if width + wide > most and lines[-1]:
            lines.append("")
            width = 0
        lines[-1] += (" " if lines[-1] else "") + word
        width += wide
    return lines


def _pen(stroke: str, dash: str) -> dict[str, str]:
    return {"stroke": stroke, "stroke_dasharray": dash or "none"}


def _line(
    x1: float,
    y1: float,
    x2: float,
    y2: float,
    dash: str = "",
    stroke: str = "currentColor",
    width: int = 1,
) -> SafeString:
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    return tag("line", **ends, stroke_width=width, **_pen(stroke, dash))


def _text(
    x: float, y: float, words: str, anchor: str = "start", size: int = 13, weight: str = "normal"
) -> SafeString:
    how = {"text_anchor": anchor, "font_size": size, "font_weight": weight}
    return tag("text", words, x=x, y=y, **how)
