"""The picture of a load test: a bar for each guard against the stock there was. Plain SVG."""

from collections.abc import Sequence
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from loadtest.report import by_guard, sentence

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 720, 150, 40, 62, 46, 26
GOOD, BAD = "#1d7a4f", "#c0392b"


def draw(runs: Sequence[dict[str, Any]], *, alone: bool = False) -> SafeString:
    """One bar a guard, of its worst run. `alone`: a file with its own background."""
    rows = [(name, max(group, key=lambda run: run["oversold"])) for name, group in by_guard(runs)]
    stock = runs[0]["stock"]
    unit = (WIDTH - LEFT - RIGHT) / max(stock, *(run["sold"] for _name, run in rows))
    height = TOP + ROW * len(rows) + 12
    line = round(LEFT + stock * unit, 1)
    bars = format_html_join(
        "\n", "{}", ((_bar(name, run, TOP + ROW * i, unit),) for i, (name, run) in enumerate(rows))
    )
    return format_html(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" role="img" '
        'aria-label="{said}" font-family="system-ui, sans-serif" font-size="15" {colours}>\n'
        '<defs><pattern id="over" width="8" height="8" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="8" height="8" fill="{bad}"/>'
        '<rect width="2" height="8" fill="#fff" fill-opacity=".45"/></pattern></defs>\n'
        '{paper}<text x="12" y="24" font-weight="600">{said}</text>\n{bars}\n'
        '<path d="M{line} {top}V{bottom}" stroke="currentColor" stroke-dasharray="4 3"/>\n'
        '<text x="{line}" y="{label}" text-anchor="middle" font-size="13">{stock}</text>\n</svg>\n',
        w=WIDTH,
        h=height,
        said=sentence(runs),
        colours=format_html('color="#1f2328" fill="{}"', "#1f2328") if alone else CURRENT,
        bad=BAD,
        paper=format_html('<rect width="{}" height="{}" rx="8" fill="#fff"/>\n', WIDTH, height)
        if alone
        else "",
        bars=bars,
        line=line,
        top=TOP - 6,
        bottom=height - 10,
        label=TOP - 12,
        stock=_("stock %(stock)s") % {"stock": stock},
    )


CURRENT = SafeString('fill="currentColor"')


def _bar(name: str, run: dict[str, Any], y: int, unit: float) -> SafeString:
    within = round(min(run["sold"], run["stock"]) * unit, 1)
    beyond = round(run["oversold"] * unit, 1)
    return format_html(
        '<text x="{left}" y="{text}" text-anchor="end">{name}</text>'
        '<rect x="{x}" y="{y}" width="{within}" height="{bar}" fill="{good}"/>'
        '<rect x="{over}" y="{y}" width="{beyond}" height="{bar}" fill="url(#over)"/>'
        '<text x="{inside}" y="{text}" fill="#fff">{said}</text>{more}',
        left=LEFT - 12,
        x=LEFT,
        y=y,
        text=y + 18,
        name=name,
        within=within,
        bar=BAR,
        good=GOOD,
        over=round(LEFT + within, 1),
        beyond=beyond,
        inside=LEFT + 10,
        said=_("sold %(sold)s") % run,
        more=_over(run, LEFT + within + beyond, y + 18),
    )


def _over(run: dict[str, Any], end: float, y: int) -> SafeString:
    if not run["oversold"]:
        return SafeString("")
    return format_html(
        '<text x="{}" y="{}" text-anchor="end" fill="#fff" font-weight="600">{}</text>',
        round(end - 10, 1),
        y,
        _("%(oversold)s too many") % run,
    )
