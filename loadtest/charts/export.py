"""A report as a file: CSV for a spreadsheet, and one HTML page that needs nothing else."""

import csv
import io
from typing import Any

from django.template.loader import render_to_string

from loadtest.charts import curves as charts
from loadtest.charts.bars import draw
from loadtest.load import report
from loadtest.load.plan import Plan

Report = dict[str, Any]
COLUMNS = (
    "backend",
    "discipline",
    "repeat",
    "stock",
    "attempts",
    "sold",
    "oversold",
    "undersold",
    "orders_per_second",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "verdict",
    "why",
)


FILES = {
    "csv": "a line a run",
    "html": "one page that needs nothing else",
    "png": "everything, drawn",
    "svg": "the bars",
}


def as_file(result: Report, suffix: str) -> bytes:
    """The contents of a file of one of FILES."""
    if suffix == "png":
        return charts.png(result["runs"])
    if suffix == "csv":
        return _csv(result).encode()
    if suffix == "svg":
        return draw(result["runs"], alone=True).encode()
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
    """What a page shows of a report: the template's context."""
    runs = result["runs"]
    return {
        "sentence": report.sentence(runs),
        "surprises": report.surprises(runs),
        "picture": draw(runs),
        "sold_over_time": charts.sold_over_time(runs),
        "waits": charts.waits(runs),
        "lines": runs,
        "versions": result["versions"],
        "command": Plan(**result["settings"]).command(),
    }
