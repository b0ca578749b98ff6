"""Export the report of a load test: CSV, PNG, SVG, and one HTML page without other resources."""

import csv
import io
from typing import Any

from django.template.loader import render_to_string
from django.utils.translation import gettext as _

from loadtest.charts import bars, curves, timeline
from loadtest.load import report
from loadtest.load.plan import Plan

Report = dict[str, Any]
COLUMNS = (
    *("backend", "discipline", "repeat", "stock", "attempts", "sold", "oversold", "undersold"),
    *("orders_per_second", "p50_ms", "p95_ms", "p99_ms", "verdict", "why"),
)
FILES = {
    "csv": "CSV, one line per run",
    "html": "self-contained HTML report",
    "png": "PNG image with the verdict and all charts",
    "svg": "SVG bar chart",
}


def as_file(result: Report, suffix: str) -> bytes:
    """Return the contents of a file of one of FILES."""
    if suffix == "png":
        return curves.png(result["runs"])
    if suffix == "csv":
        return _csv(result).encode()
    if suffix == "svg":
        return bars.draw(result["runs"], alone=True).encode()
    return render_to_string("lab/offline.html", {**shown(result), **timeline.assets()}).encode()


def _csv(result: Report) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
    writer.writeheader()
    for run in result["runs"]:
        waits = {f"{share}_ms": wait for share, wait in run["wait_ms"].items()}
        writer.writerow({**run, **waits})
    return file.getvalue()


def _why(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first lost update of each oversold guard: in words, as a chart and as code."""
    guards: dict[tuple[str, str], dict[str, Any]] = {}
    for run in runs:
        if run.get("lost_updates"):
            guards.setdefault((run["backend"], run["discipline"]), run)
    found = []
    for run in guards.values():
        variant = {"events": run["lost_updates"]["events"], "guard": run["discipline"]}
        title = _("The first lost update: %(backend)s + %(discipline)s") % run
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
    sold, waits = curves.sold_over_time(runs), curves.waits(runs)
    return {"chart": bars.draw(runs), "sold_over_time": sold, "waits": waits}


def shown(result: Report) -> dict[str, Any]:
    """Return the template context of a report."""
    runs = result["runs"]
    return {
        "sentence": report.sentence(runs),
        "surprises": report.surprises(runs),
        "why": _why(runs),
        **charts(runs),
        "lines": [{**run, "words": report.words(run)} for run in runs],
        "versions": result["versions"],
        "command": Plan(**result["settings"]).command(),
    }
