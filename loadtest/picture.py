"""The picture of a load test: a bar for each guard against the stock there was. Plain SVG."""

from collections.abc import Sequence
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from loadtest.report import by_guard, sentence

WIDTH, MARGIN, TOP, ROW, BAR = 420, 10, 4, 58, 22
FONT = "system-ui, DejaVu Sans, WenQuanYi Zen Hei, sans-serif"
INK, GOOD, BAD = "#1f2328", "#1d7a4f", "#c0392b"


def draw(runs: Sequence[dict[str, Any]], *, alone: bool = False) -> SafeString:
    """One bar a guard, of its worst run. `alone`: a file with its own background."""
    rows = [max(group, key=lambda run: run["oversold"]) for _name, group in by_guard(runs)]
    unit = (WIDTH - 2 * MARGIN) / max(runs[0]["stock"], *(run["sold"] for run in rows))
    height = TOP + ROW * len(rows)
    return format_html(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="{said}" font-family="{font}" font-size="14" fill="{ink}">\n'
        '<defs><pattern id="over" width="8" height="8" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="8" height="8" fill="{bad}"/>'
        '<rect width="3" height="8" fill="#fff" fill-opacity=".5"/></pattern></defs>\n'
        "{paper}{bars}\n</svg>\n",
        width=WIDTH,
        height=height,
        said=sentence(runs),
        font=FONT,
        ink=INK if alone else "currentColor",
        bad=BAD,
        paper=format_html('<rect width="{}" height="{}" fill="#fff"/>\n', WIDTH, height)
        if alone
        else "",
        bars=format_html_join(
            "\n", "{}", ((_bar(run, TOP + ROW * i, unit),) for i, run in enumerate(rows))
        ),
    )


def _bar(run: dict[str, Any], y: int, unit: float) -> SafeString:
    """What was sold, beyond the stock hatched; a mark stands where the stock ends."""
    words = _("%(backend)s + %(discipline)s: sold %(sold)s, stock %(stock)s") % run
    if run["oversold"]:
        words += ", " + _("%(oversold)s too many") % run
    within = round(min(run["sold"], run["stock"]) * unit, 1)
    return format_html(
        '<text x="{x}" y="{text}">{words}</text>'
        '<rect x="{x}" y="{y}" width="{within}" height="{bar}" fill="{good}"/>'
        '<rect x="{over}" y="{y}" width="{beyond}" height="{bar}" fill="url(#over)"/>'
        '<rect x="{end}" y="{mark}" width="2" height="{tall}"/>',
        x=MARGIN,
        y=y + 22,
        text=y + 14,
        words=words,
        within=within,
        bar=BAR,
        good=GOOD,
        over=MARGIN + within,
        beyond=round(run["oversold"] * unit, 1),
        end=round(MARGIN + run["stock"] * unit - 1, 1),
        mark=y + 18,
        tall=BAR + 8,
    )
