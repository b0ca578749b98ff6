"""Export the report of a load test: CSV, PNG, SVG, and one HTML page without other resources."""

import csv
import io
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from loadtest.charts import curves, svg, timeline
from loadtest.load import report
from loadtest.load.plan import Plan

Report = dict[str, Any]
COLUMNS = (
    *("backend", "discipline", "repeat", "stock", "attempts", "sold", "oversold", "undersold"),
    *("orders_per_second", "p50_ms", "p95_ms", "p99_ms", "verdict", "why"),
)
PREVIEW = (1200, 630)
LISTED = 100
"""Runs in the table of a page."""
FILES = {
    "csv": "CSV, one line per run",
    "html": "self-contained HTML report",
    "png": "PNG image with the verdict, bars and curve",
    "svg": "SVG bar chart",
}


def as_file(result: Report, suffix: str) -> bytes:
    """Return the contents of a file of one of FILES."""
    if suffix == "png":
        return preview(result, scale=2)
    if suffix == "csv":
        waits = [{f"{n}_ms": ms for n, ms in run["wait_ms"].items()} for run in result["runs"]]
        cells = [{**run, **wait} for run, wait in zip(result["runs"], waits, strict=True)]
        return table([COLUMNS, *([one[name] for name in COLUMNS] for one in cells)])
    if suffix == "svg":
        return curves.bars(result["runs"], alone=True).encode()
    return render_to_string("lab/offline.html", shown(result) | timeline.assets()).encode()


def preview(result: Report, *, scale: int = 1) -> bytes:
    """Return a PNG with the verdict of a load test and its charts."""
    runs = result["runs"]
    pictures = [*filter(None, (curves.bars(runs), curves.sold_over_time(runs)))]
    return sheet([report.headline(runs)], pictures, scale)


def sheet(texts: Sequence[str], pictures: Sequence[SafeString], scale: int) -> bytes:
    """Return a PNG of 1200 x 630 pixels, or a multiple: a title, maybe a text, and pictures."""
    drawing, top = svg.Drawing(), 30.0
    drawing.add("rect", width=PREVIEW[0], height=PREVIEW[1], fill="#fff")
    for text, largest in zip(texts, (44, 28), strict=False):
        size, lines = _fitted(text, largest)
        for line in lines:
            top += 1.25 * size
            drawing.text(40, top, line, font_size=size, font_weight="bold")
        top += 10
    wide = (PREVIEW[0] - 60) / max(1, len(pictures))  # a scenario that did not run has none
    for place, picture in enumerate(pictures):
        box = f'x="{40 + place * wide}" y="{top + 10}" width="{wide - 20}" height="{590 - top}"'
        drawing.parts.append(SafeString(picture.replace("<svg ", f"<svg {box} ", 1)))
    return svg.png(svg.frame(texts[0], PREVIEW, drawing.parts, color=svg.INK), scale * PREVIEW[0])


def _fitted(text: str, largest: int) -> tuple[int, list[str]]:
    """Return the largest font size at which the text has three lines, and these lines."""
    wide = 1900 if max(text) < "\u2e80" else 1100  # a Chinese letter is wider
    for size in range(largest, 14, -2):
        if len(lines := textwrap.wrap(text, wide // size)) <= 3:
            break
    return size, lines


def table(rows: Iterable[Iterable[object]]) -> bytes:
    """Return rows as CSV."""
    file = io.StringIO()
    csv.writer(file).writerows(rows)
    return file.getvalue().encode()


def _why(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first lost update of each oversold guard: in words, as a chart and as code."""
    found = []
    for name, run in report.with_lost_updates(runs):
        events = run["lost_updates"]["events"]
        variant = {"events": events, "guard": run["discipline"], "stock": run["stock"]}
        title = _("The first lost update: %(guard)s") % {"guard": name}
        story, chart = timeline.story(variant), timeline.draw(variant, title=title)
        found.append(
            {
                "sentence": report.explain(run),
                "code": list(dict.fromkeys(one.line for one in story if one.line)),
                "variants": [{"heading": title, "chart": chart, "story": story}],
            }
        )
    return found


def charts(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the three charts of the runs of one report, or of two."""
    return {
        "chart": curves.bars(runs),
        "sold_over_time": curves.sold_over_time(runs),
        "waits": curves.waits(runs),
    }


def _buyers(result: Report) -> list[tuple[str, dict[str, Any]]]:
    """Return the buyers of each guard's worst run as signs, of two guards at most."""
    guards = report.by_guard(result["runs"])
    number = dict.fromkeys(("buyers", "served"), result["settings"]["buyers"])
    return [
        (name, curves.buyers({**report.worst(group), **number}))
        for name, group in guards
        if len(guards) <= 2 and any(run["verdict"] != "not-run" for run in group)
    ]


def shown(result: Report) -> dict[str, Any]:
    """Return the template context of a report; a long table shows each guard's worst run only."""
    runs, plan = result["runs"], Plan(**result["settings"])
    worst = [report.worst(group) for _name, group in report.by_guard(runs)]
    several = [*plan.disciplines] != ["naive"]
    injected = list(map(report.injected, runs))
    listed = runs if len(runs) <= LISTED else worst
    return {
        "sentence": report.headline(runs),
        "surprises": report.surprises(runs)[:LISTED],
        "buyers": _buyers(result),
        "why": _why(runs),
        **charts(runs),
        "lines": [
            {
                **run,
                "guard": report.run_of(run, plan.repeats, several=several),
                "words": report.words(run),
                "faults": [report.fault_words(one) for one in run.get("faults", ())],
            }
            for run in listed
        ],
        "by_hand": any(len(names) > len(plan.strike_after) for names in injected),
        "was_paused": any("pause-holder" in names for names in injected),
        "met": sum(map(report.met, runs)),
        "is_exact": all(run["verdict"] == "ok" for run in runs),
        "of": len(runs),
        "spreads": report.spreads(runs),
        "unlisted": len(runs) - len(listed),
        "versions": result["versions"],
        "command": plan.command(),
    }
