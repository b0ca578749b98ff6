"""The charts of a load test: units sold by each guard, over time, its buyers and their waits.

Plain SVG with presentation attributes only, the same for pages, offline files and previews.
"""

import json
from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from loadtest.charts import svg
from loadtest.charts.svg import Drawing, tag
from loadtest.kernel.faults import FAULTS
from loadtest.kernel.report import grouped
from loadtest.load.report import REPORT, by_guard, sentence, worst
from shop.sales.guards import LOCKS

Run = dict[str, Any]
Pens = dict[str, dict[str, str]]
"""The attributes of the line of each guard."""
WIDTH, MARGIN, BAR = 420, 10, 22
TOP, BAR_ROW = 4, 58
GOOD, BAD = "#1d7a4f", "#c0392b"
# Colour and dashes by lock: the lines differ without colour too, legible on white and on black.
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
DASHES = {"A": "", "B": "5 4"}
LEFT, PLOT, ROW = 54, 190, 46
LEGEND = 22
HEAD = 13
"""How far a curve rises above the line of the stock, at least, if units are sold beyond it."""
LABEL = 130
"""Distance at which the names of two faults do not touch."""
END = {"text_anchor": "end"}
MOST_SIGNS = 200


def bars(runs: Sequence[Run], *, alone: bool = False) -> SafeString:
    """Return one bar per guard, of its worst run; `alone` adds a background for a file."""
    rows = [{**worst(group), "guard": name} for name, group in by_guard(runs)]
    most = max(max(run["stock"], run["sold"]) for run in runs)
    unit = (WIDTH - 2 * MARGIN) / most
    height = TOP + BAR_ROW * len(rows)
    red = tag("rect", width=8, height=8, fill=BAD)
    stripe = tag("rect", width=3, height=8, fill="#fff", fill_opacity=0.5)
    drawing = Drawing()
    drawing.add("defs", svg.hatch("over", 8, red, stripe))
    if alone:
        drawing.add("rect", width=WIDTH, height=height, fill="#fff")
    for number, run in enumerate(rows):
        _bar(drawing, run, TOP + BAR_ROW * number, unit)
    ink = {"fill": svg.INK} if alone else {}
    return svg.frame(sentence(runs), (WIDTH, height), drawing.parts, font_size=14, **ink)


def _bar(drawing: Drawing, run: Run, y: int, unit: float) -> None:
    """Draw the units sold, those beyond the stock hatched, and a mark at the end of the stock."""
    words = _("%(guard)s: sold %(sold)s, stock %(stock)s")
    if run["oversold"]:
        words = _("%(guard)s: sold %(sold)s, stock %(stock)s, %(oversold)s too many")
    within, end = min(run["sold"], run["stock"]) * unit, MARGIN + run["stock"] * unit - 1
    bar = {"y": y + 22, "height": BAR}
    # One unit too many of 400 would be less than a pixel wide.
    width = max(4, run["oversold"] * unit) if run["oversold"] else 0
    over = {"x": MARGIN + within, "width": width}
    told = words % grouped(run)
    if run["verdict"] == "not-run":
        told = _("%(title)s: %(state)s") % {"title": run["guard"], "state": _("not run")}
    drawing.text(MARGIN, y + 14, told)
    drawing.add("rect", x=MARGIN, width=within, fill=GOOD, **bar)
    drawing.add("rect", **over, fill="url(#over)", **bar)
    drawing.add("rect", x=end, y=y + 18, width=2, height=BAR + 8)


def _worst_runs(runs: Sequence[Run]) -> list[tuple[str, Run]]:
    """Return the name and the worst run of each guard that ran."""
    groups = [
        (name, [run for run in group if run.get("sold_at")]) for name, group in by_guard(runs)
    ]
    return [(name, worst(group)) for name, group in groups if group]


def sold_over_time(runs: Sequence[Run], *, scale: int = 1) -> SafeString:
    """Return one line per guard, a dashed line for the stock, and a vertical mark per fault.

    Two reports in one chart (`comparison.overlaid`) have a colour per guard and a dash per report.
    `scale`: the units that fit in at least.
    """
    shown = _worst_runs(runs)
    if not shown:
        return SafeString("")
    ends = [run["sold_at"][-1][0] for _name, run in shown]
    seconds = max([0.1, *ends, *(mark[0] for _name, run in shown for mark in run["marks"])])
    stocks = sorted({run["stock"] for _name, run in shown})
    most = max(scale, *stocks, *(run["sold"] for _name, run in shown))
    pens = _pens(shown)

    def x(at: float) -> float:
        return float(round(LEFT + at / seconds * (WIDTH - LEFT - MARGIN), 1))

    drawing = Drawing()
    marks = [(x(at), name, what) for name, run in shown for at, what in run["marks"]]
    rows = _marks(drawing, marks, pens)
    height = PLOT - 14 * rows - HEAD
    beyond = max(1, most - stocks[-1])
    # One unit too many of 400 would be less than a pixel high.
    rise = max(HEAD, height * beyond / most)

    def y(units: float) -> float:
        within = min(units, stocks[-1])
        return float(round(PLOT - height * within / most - rise * (units - within) / beyond, 1))

    drawing.line(x(0), y(0), x(seconds), y(0))
    for stock in stocks:
        drawing.line(x(0), y(stock), x(seconds), y(stock), stroke_dasharray="5 4")
    is_apart = y(stocks[-1]) - y(most) > 12
    is_above = y(0) - y(stocks[0]) > 12
    for units in (*stocks, *([0] if is_above else []), *([most] if is_apart else [])):
        drawing.text(LEFT - 4, y(units) + 4, f"{units:,}", **END)
    drawing.text(WIDTH - MARGIN, PLOT + 18, _("%.1f s") % seconds, **END)
    drawing.text(LEFT, PLOT + 18, _("%s s") % 0)
    for row, (name, run) in enumerate(shown):
        points, pen = _steps([(x(at), y(units)) for at, units in run["sold_at"]]), pens[name]
        top = PLOT + 40 + LEGEND * row
        drawing.add("polyline", points=points, fill="none", stroke_width=2.5, **pen)
        drawing.line(LEFT, top - 4, LEFT + 34, top - 4, stroke_width=3, **pen)
        told = _("%(name)s: %(sold)s / %(stock)s") % {**grouped(run), "name": name}
        drawing.text(LEFT + 42, top, told)
    size = WIDTH, PLOT + 40 + LEGEND * len(shown)
    return svg.frame(_("Units sold over time"), size, drawing.parts, font_size=13)


def _marks(drawing: Drawing, marks: Iterable[tuple[float, str, str]], pens: Pens) -> int:
    """Draw marks at their x, each with its guard and name; return the rows of names, at least 1."""
    labels: list[tuple[int, float, str]] = []
    for x, guard, name in marks:
        word = FAULTS[name].button if name in FAULTS else _(name)
        word = f"{guard.partition(REPORT)[2]} {word}".strip()
        is_right = x > WIDTH * 0.7
        drawing.line(x, 14, x, PLOT, stroke=pens[guard]["stroke"], stroke_dasharray="2 2")
        near = [(row, said) for row, left, said in labels if abs(x - left) < LABEL]
        # The same fault hits the next guard at about the same time.
        if all(said != word for _row, said in near):
            row = min(set(range(len(near) + 1)) - {row for row, _said in near})
            labels.append((row, x, word))
            left = x + (-3 if is_right else 3)
            drawing.text(left, 12.0 + 14 * row, word, **(END if is_right else {}))
    return max((row + 1 for row, _x, _word in labels), default=1)


def _pens(runs: Iterable[tuple[str, Run]]) -> Pens:
    """Return colour and dashes of each line: those of its lock, or else the next free ones.

    Of two reports, the dashes are those of the report.
    """
    taken: dict[str, tuple[str, str]] = {}
    found: Pens = {}
    for name, run in runs:
        guard, _sign, label = name.partition(REPORT)
        first = list(LOCKS).index(run["backend"])
        free = (pen for pen in (*LINES[first:], *LINES[:first]) if pen not in taken.values())
        colour, dash = taken.setdefault(guard, next(free, LINES[first]))
        found[name] = {"stroke": colour, "stroke_dasharray": DASHES.get(label, dash) or "none"}
    return found


def waits(runs: Sequence[Run]) -> SafeString:
    """Return one row per guard: the 50th, 95th and 99th percentile of the buyers' waits."""
    shown = _worst_runs(runs)
    if not shown:
        return SafeString("")
    longest = max(1, *(run["wait_ms"]["p99"] for _name, run in shown))
    unit = (WIDTH - 2 * MARGIN) / longest
    drawing = Drawing()
    for row, (name, run) in enumerate(shown):
        top, wait = ROW * row, run["wait_ms"]
        drawing.text(MARGIN, top + 16, name)
        told = {share: f"{ms:,.0f}" for share, ms in wait.items()}
        text = _("p50 %(p50)s · p95 %(p95)s · p99 %(p99)s ms") % told
        drawing.text(WIDTH - MARGIN, top + 16, text, **END)
        for share, tall, opacity in (("p99", 4, ".45"), ("p95", 12, ".6"), ("p50", BAR - 2, "1")):
            box = {"y": top + 32 - tall / 2, "width": max(wait[share] * unit, 1), "height": tall}
            drawing.add("rect", x=MARGIN, **box, fill=GOOD, fill_opacity=opacity)
    size = WIDTH, ROW * len(shown)
    return svg.frame(_("How long buyers waited"), size, drawing.parts, font_size=13)


def _steps(points: Sequence[tuple[float, float]]) -> str:
    """Return the points of a step function: a sale happens at once."""
    found: list[tuple[float, float]] = []
    for x, y in points:
        if found:
            found.append((x, found[-1][1]))
        found.append((x, y))
    return " ".join(f"{x},{y}" for x, y in found)


def buyers(run: Run) -> dict[str, Any]:
    """Return words, number and signs of each state of a buyer, and the buyers of a sign.

    `replay` is what lab.js needs to show them at any moment of the run.
    """
    per_sign = ceil(run["buyers"] / MOST_SIGNS)
    states, end = [], 0
    for name, words, sign, count in (
        ("bought", _("bought"), "●", run["sold"] - run["oversold"]),
        ("over", _("bought beyond the stock"), "▲", run["oversold"]),
        ("refused", _("refused"), "✕", max(0, run["served"] - run["sold"])),
        ("waiting", _("waiting"), "○", run["buyers"] - max(run["served"], run["sold"])),
    ):
        begin, end = end, end + count
        signs = sign * (ceil(end / per_sign) - ceil(begin / per_sign))
        if name == "over" and count:  # a few of very many
            signs = signs or sign
        states.append({"name": name, "words": words, "sign": sign, "count": count, "signs": signs})
    replay = {name: run[name] for name in ("buyers", "stock", "sold_at")} | {"per_sign": per_sign}
    # After a fault, its late write explains the oversell; without one, updates are lost all along.
    is_hit = run.get("faults") and run["lost_updates"]
    replay["decisive"] = run["lost_updates"]["at"] if is_hit else None
    return {"states": states, "per_sign": per_sign, "replay": json.dumps(replay)}
