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


def _why(runs: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the first lost update as a sentence, a chart and a table; None if there is none."""
    run = next((run for run in runs if run.get("lost_updates")), None)
    if run is None:
        return None
    variant = {"events": run["lost_updates"]["events"], "facts": {}}
    title = _("The first lost update: %(backend)s + %(discipline)s") % run
    return {
        "sentence": report.explain(run),
        "title": title,
        "chart": timeline.draw(variant, title=title),
        "story": timeline.story(variant),
    }


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
