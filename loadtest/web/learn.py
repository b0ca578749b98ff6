"""The course under /learn/: its parts, a page for each step, and the grid. All are public."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext_noop

from devservers.programs import installed
from loadtest.charts import timeline
from loadtest.charts.source import diff
from loadtest.game.levels import LEVELS
from loadtest.load.plan import BACKENDS
from loadtest.models import LabRun
from loadtest.scenarios import SCENARIOS, export
from loadtest.scenarios.course import COURSE, PARTS, step_of
from loadtest.scenarios.scenario import FAULT_TITLES, Scenario
from loadtest.web import runs
from shop.sales.guards import guard_words
from shop.web.decorators import live_page

NO_LOCK, RECIPE = gettext_noop("no lock"), gettext_noop("textbook recipe")
SHOP = gettext_noop("shop")
PROGRAMS = {"MariaDB": "mariadbd", "ZooKeeper": "java"}


@live_page
def course(request: HttpRequest) -> HttpResponse:
    """Show all steps, each with its picture."""
    pictures = {
        step: timeline.draw(recording(step.scenarios[0])["halves"][0], is_brief=True)
        for step in COURSE
    }
    parts = [
        (part, [{"step": step, "chart": pictures[step]} for step in part.steps]) for part in PARTS
    ]
    variant, title = recording("holder-paused")["halves"][0], SCENARIOS["holder-paused"].title
    picture = timeline.draw(variant, title=str(title), is_brief=True)
    return render(request, "learn/course.html", {"parts": parts, "picture": picture})


@live_page
def lesson(request: HttpRequest, name: str) -> HttpResponse:
    """Show a step: its text, its code, the recordings of its scenarios and their newest runs."""
    latest: dict[str, LabRun] = {}
    if not getattr(request, "is_static", False):  # a file has no runs, and needs no database
        runs.fail_abandoned()
        latest = runs.latest_of_scenarios()
    number = next((n for n, step in enumerate(COURSE) if step.name == name), None)
    if number is None:
        raise Http404
    step = COURSE[number]
    part = next(part for part in PARTS if step in part.steps)
    context = {
        "part": part,
        "number": part.steps.index(step) + 1,
        "of": len(part.steps),
        "step": step,
        "code": list(diff(step.broken, step.repaired)),
        "is_level": name in LEVELS,
        "recordings": [_recording(scenario, latest) for scenario in step.scenarios],
        "before": COURSE[number - 1] if number else None,
        "after": COURSE[number + 1] if number + 1 < len(COURSE) else None,
    }
    return render(request, "learn/lesson.html", context)


def recording(name: str) -> dict[str, Any]:
    """Return the recorded result of a scenario, which no visitor's run replaces."""
    result: dict[str, Any] = export.recorded()["results"][name]
    return result


def _recording(name: str, latest: dict[str, LabRun]) -> dict[str, Any]:
    scenario = SCENARIOS[name]
    return {
        **export.shown(recording(name)),
        "run": latest.get(name),
        "seconds": recording(name)["seconds"],
        "is_missing": bool(scenario.needs) and not installed(PROGRAMS[scenario.needs]),
    }


@live_page
def grid(request: HttpRequest) -> HttpResponse:
    """Show a row for each scenario and a column for each guard; each mark links a recording."""
    order, faults = (NO_LOCK, RECIPE, SHOP, *BACKENDS), [*FAULT_TITLES]
    found: dict[Scenario, dict[str, list[dict[str, Any]]]] = {}
    for scenario in sorted(SCENARIOS.values(), key=lambda one: faults.index(one.fault)):
        for one in recording(scenario.name)["halves"]:
            cell = found.setdefault(scenario, {}).setdefault(guard_of(one["guard"]), [])
            cell.append({**one, "half": export.half(one), "words": guard_words(one["guard"])})
    guards = sorted(
        {guard for row in found.values() for guard in row},
        key=lambda guard: (order.index(guard.split(" + ")[0]), guard),
    )
    rows = [
        (one, step_of(one.name), FAULT_TITLES[one.fault], [row.get(guard, ()) for guard in guards])
        for one, row in found.items()
    ]
    return render(
        request, "learn/grid.html", {"guards": [guard_words(one) for one in guards], "rows": rows}
    )


def guard_of(text: str) -> str:
    """Return the lock of a variant's guard, and the fence if there is one."""
    lock, _plus, strategy = text.split(",")[0].partition(" + ")
    alias = lock.split()[0]
    if lock == SHOP:
        return SHOP
    if alias not in BACKENDS:
        return NO_LOCK if strategy else RECIPE
    return f"{alias} + {strategy}" if strategy == "fenced" else alias
