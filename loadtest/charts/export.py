"""Export the report of a load test: CSV, PNG, SVG, and one HTML page without other resources."""

import csv
import io
from typing import Any

from django.template.loader import render_to_string

from loadtest.charts import bars, curves
from loadtest.load import report
from loadtest.load.plan import Plan

Report = dict[str, Any]
COLUMNS = (
    *("backend", "discipline", "repeat", "stock", "attempts", "sold", "oversold", "undersold"),
    *("orders_per_second", "p50_ms", "p95_ms", "p99_ms", "verdict", "why"),
)
FILES = {
    "csv": "one line per run",
    "html": "one page without external resources",
    "png": "the verdict and all charts",
    "svg": "the bar chart",
}


def as_file(result: Report, suffix: str) -> bytes:
    """Return the contents of a file of one of FILES."""
    if suffix == "png":
        return curves.png(result["runs"])
    if suffix == "csv":
        return _csv(result).encode()
    if suffix == "svg":
        return bars.draw(result["runs"], alone=True).encode()
    return render_to_string("lab/offline.html", shown(result)).encode()


def _csv(result: Report) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
    writer.writeheader()
    for run in result["runs"]:
        waits = {f"{share}_ms": wait for share, wait in run["wait_ms"].items()}
        writer.writerow({**run, **waits})
    return file.getvalue()


def shown(result: Report) -> dict[str, Any]:
    """Return the template context of a report."""
    runs = result["runs"]
    return {
        "sentence": report.sentence(runs),
        "surprises": report.surprises(runs),
        "chart": bars.draw(runs),
        "sold_over_time": curves.sold_over_time(runs),
        "waits": curves.waits(runs),
        "lines": runs,
        "versions": result["versions"],
        "command": Plan(**result["settings"]).command(),
    }
