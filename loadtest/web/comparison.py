"""Compare the reports of two load tests."""

from collections import Counter
from statistics import median
from typing import Any

from django.utils.translation import gettext as _

from loadtest.charts.curves import DASHES
from loadtest.kernel.faults import FAULTS
from loadtest.load import report
from loadtest.load.plan import Plan

Report = dict[str, Any]

MEASURES = {"sold": 0, "orders_per_second": 1, "p99": 0}
"""The figures that are compared, with their decimals."""


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
    """Return a row for each guard: its runs in each load test, and the differences."""
    runs = [run for one in reports for run in one["runs"]]
    found = []
    for name, group in report.by_guard(runs):
        pair = [_side(one, group[0]) for one in reports]
        found.append({"name": name, "pair": pair, "difference": _difference(*pair)})
    return found


def _side(result: Report, guard: report.Run) -> dict[str, Any] | None:
    """Return the figures of all runs with the guard of this one, and the worst verdict."""
    names = "backend", "discipline"
    runs = [run for run in result["runs"] if all(run[one] == guard[one] for one in names)]
    if not runs:
        return None
    run = report.worst(runs)
    done = [one for one in runs if one["verdict"] != "not-run"]
    values = {name: [{**one, **one["wait_ms"]}[name] for one in done] for name in MEASURES}
    shown = {
        name: report.spread(values[name], digits).partition(" ")[::2]
        for name, digits in MEASURES.items()
        if done
    }
    return {**run, **shown, "words": report.words(run), "values": values}


def _difference(a: dict[str, Any] | None, b: dict[str, Any] | None) -> dict[str, tuple[str, bool]]:
    """Return by how much the medians differ, and if the runs of both sides overlap."""
    found = {}
    for name, digits in MEASURES.items():
        one, other = (side["values"][name] if side else [] for side in (a, b))
        if one and other:
            change = median(other) - median(one)
            text = f"{change:{'+' if change else ''},.{digits}f}".replace("-", "−")
            is_chance = min(one) <= max(other) and min(other) <= max(one)
            found[name] = text, bool(change) and is_chance
    return found
