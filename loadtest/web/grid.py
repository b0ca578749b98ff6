"""The grid of guards and faults: a small picture of both variants of every scenario."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from loadtest.charts import timeline
from loadtest.load.plan import BACKENDS
from loadtest.scenarios import SCENARIOS, export
from loadtest.scenarios.course import step_of
from loadtest.scenarios.scenario import FAULTS
from loadtest.web import runs
from loadtest.web.learn import shown_result
from shop.web.decorators import live_page

NO_LOCK, RECIPE = gettext_noop("no lock"), gettext_noop("textbook recipe")


@live_page
def grid(request: HttpRequest) -> HttpResponse:
    """Show a row for each fault and a column for each guard, with the newest run of each."""
    latest = runs.latest_of_scenarios()
    cells: dict[str, dict[str, list[dict[str, Any]]]] = {fault: {} for fault in FAULTS}
    for scenario in SCENARIOS.values():
        variants = shown_result(scenario.name, latest)["halves"]
        for variant in variants:
            picture = {
                "scenario": scenario,
                "step": step_of(scenario.name),
                "variant": export.half(variant),
                "guard": _(variant["guard"]),
                "broke": variant["facts"]["broke"],
                "run": latest.get(scenario.name),
                "chart": timeline.draw(variant, length=timeline.length_of(variants), is_brief=True),
            }
            cells[scenario.fault].setdefault(guard_of(variant["guard"]), []).append(picture)
    order = (NO_LOCK, RECIPE, *BACKENDS)
    found = {guard for row in cells.values() for guard in row}
    guards = sorted(found, key=lambda guard: (order.index(guard.split(" + ")[0]), guard))
    rows = [(FAULTS[one], [row.get(guard, ()) for guard in guards]) for one, row in cells.items()]
    return render(request, "learn/grid.html", {"guards": [_(one) for one in guards], "rows": rows})


def guard_of(text: str) -> str:
    """Return the lock of a variant's guard, and the fence if there is one."""
    lock, _plus, strategy = text.split(",")[0].partition(" + ")
    alias = lock.split()[0]
    if alias not in BACKENDS:
        return NO_LOCK if strategy else RECIPE
    return f"{alias} + {strategy}" if strategy == "fenced" else alias
