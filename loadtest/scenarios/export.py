"""Export a scenario report as an offline page, as charts, and as a recording."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from django.template.loader import render_to_string
from django.utils.translation import gettext as _

from loadtest.charts import svg, timeline
from loadtest.charts.axis import WIDTH
from loadtest.charts.export import sheet, table
from loadtest.kernel.history import SECOND
from loadtest.scenarios.catalogue import SCENARIOS
from loadtest.scenarios.scenario import Result
from shop.sales.guards import guard_words

RECORDED = Path(__file__).with_name("recorded.json")
"""The report of `lab scenario all --write`; the pages under /learn/ need every scenario in it."""


@cache
def recorded() -> dict[str, Any]:
    """Return the recorded report; its results by name under "results"."""
    report: dict[str, Any] = json.loads(RECORDED.read_text())
    return {**report, "results": {result["name"]: result for result in report["scenarios"]}}


def words(result: Result) -> str:
    """Return the verdict in the active language: a control that breaks is "reproduced"."""
    if result["verdict"] == "ok":
        return _("reproduced")
    return _("the repair broke as well") if result["verdict"] == "failed" else _("not run")


def shown(result: Result) -> dict[str, Any]:
    """Return the context of lab/_scenario.html for one result."""
    scenario = SCENARIOS[result["name"]]
    length = timeline.length_of(result["halves"])
    variants = [
        {
            "name": half(variant),
            "label": _("repaired") if variant["is_repaired"] else _("broken"),
            "heading": timeline.heading(variant),
            "chart": timeline.draw(variant, length=length),
            "story": timeline.story(variant),
        }
        for variant in result["halves"]
    ]
    return {
        "scenario": scenario,
        "result": result,
        "words": words(result),
        "sentences": scenario.describe(result),
        "variants": variants,
    }


def as_file(report: dict[str, Any], suffix: str) -> bytes:
    """Return the contents of a file: html alone, csv with all events, or the preview as png."""
    if suffix == "html":
        results = [shown(one) for one in report["scenarios"]]
        context = {**timeline.assets(), "shown": results, "versions": report["versions"]}
        return render_to_string("lab/scenarios_offline.html", context).encode()
    if suffix == "png":
        return preview(report, scale=2)
    found = [
        (guard_words(variant["guard"]), one.at / SECOND, one.who, one.text)
        for result in report["scenarios"]
        for variant in result["halves"]
        for one in timeline.story(variant)
    ]
    return table([("guard", "seconds", "who", "what"), *found])


def preview(report: dict[str, Any], *, scale: int = 1) -> bytes:
    """Return a PNG with the title of a scenario, what happened, and its timelines."""
    result = report["scenarios"][0]
    scenario, length = SCENARIOS[result["name"]], timeline.length_of(result["halves"])
    pictures = [timeline.draw(one, length=length, is_brief=True) for one in result["halves"]]
    return sheet([scenario.title, *scenario.describe(result)[:1]], pictures, scale)


def write_charts(report: dict[str, Any], folder: Path, *, suffix: str) -> None:
    """Write NAME-broken and NAME-repaired for each scenario, as svg or png."""
    for result in report["scenarios"]:
        for variant in result["halves"]:
            file = folder / f"{result['name']}-{half(variant)}.{suffix}"
            file.write_bytes(chart(result, variant, suffix))


def half(variant: dict[str, Any]) -> str:
    """Return the name of a variant in addresses and files."""
    return "repaired" if variant["is_repaired"] else "broken"


def chart(result: Result, variant: dict[str, Any], suffix: str) -> bytes:
    """Return the timeline of one of a result's variants as a file, svg or png."""
    picture = timeline.draw(variant, length=timeline.length_of(result["halves"]), alone=True)
    return svg.png(picture, 2 * WIDTH) if suffix == "png" else f"{picture}\n".encode()


def keep(report: dict[str, Any]) -> None:
    """Replace the recording."""
    RECORDED.write_text(json.dumps(report, separators=(",", ":")) + "\n")
