"""Compare the reports of two load tests."""

from collections import Counter
from typing import Any

from django.utils.translation import gettext as _

from loadtest.charts.curves import DASHES
from loadtest.kernel.faults import FAULTS
from loadtest.load import report
from loadtest.load.plan import Plan

Report = dict[str, Any]


def differing_settings(*reports: Report) -> list[tuple[str, str, str]]:
    """Return the labels and values, as in the form, of the settings in which two reports differ.

    The last one is the faults that hit their runs, whether planned or injected by hand.
    """
    found = []
    for one, about in Plan.about():
        a, b = (report["settings"].get(one.name) for report in reports)
        if about.label and a != b:
            found.append((str(about.label), about.in_words(a), about.in_words(b)))
    a, b = map(_injected, reports)
    return found if a == b else [*found, (_("Injected faults"), a, b)]


def _injected(result: Report) -> str:
    """Return "Redis: Pause the holder × 2" for each guard and fault."""
    hits = Counter(
        _("%(title)s: %(state)s") % {"title": guard, "state": FAULTS[name].button}
        for guard, group in report.by_guard(result["runs"])
        for run in group
        for name in report.injected(run)
    )
    return " · ".join(f"{hit} × {count}" for hit, count in sorted(hits.items()))


def overlaid(*reports: Report) -> list[dict[str, Any]]:
    """Return the runs of two reports for one chart, with the report in their names."""
    runs = [
        {**run, "discipline": f"{run['discipline']}{report.REPORT}{label}"}
        for label, one in zip(DASHES, reports, strict=True)
        for run in one["runs"]
    ]
    return sorted(runs, key=lambda run: (run["backend"], run["discipline"]))


def rows(*reports: Report) -> list[dict[str, Any]]:
    """Return a row for each guard: its worst run in each load test, and their differences."""
    runs = [run for one in reports for run in one["runs"]]
    found = []
    for name, group in report.by_guard(runs):
        pair = [_worst(one, group[0]) for one in reports]
        found.append({"name": name, "pair": pair, "difference": _difference(*pair)})
    return found


def _worst(result: Report, guard: report.Run) -> report.Run | None:
    """Return the worst run with the guard of this one."""
    names = "backend", "discipline"
    runs = [run for run in result["runs"] if all(run[one] == guard[one] for one in names)]
    if not runs:
        return None
    run = report.worst(runs)
    return {**run, "words": report.words(run), "p99": run["wait_ms"]["p99"]}


def _difference(a: dict[str, Any] | None, b: dict[str, Any] | None) -> dict[str, str]:
    """Return what the second run has more or less of, with a sign."""
    if not a or not b or "not-run" in (a["verdict"], b["verdict"]):
        return {}
    measures = {"sold": 0, "orders_per_second": 1, "p99": 1}
    return {
        name: f"{b[name] - a[name]:+,.{digits}f}".replace("-", "−")
        for name, digits in measures.items()
    }
