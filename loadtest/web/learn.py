"""The course under /learn/: its parts, a page for each step, and the grid. All are public."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.safestring import SafeString

from devservers.programs import installed
from loadtest.charts import timeline
from loadtest.charts.source import diff
from loadtest.game.levels import LEVELS
from loadtest.models import LabRun
from loadtest.scenarios import SCENARIOS, export
from loadtest.scenarios.course import COURSE, PARTS, step_of
from loadtest.texts import texts
from loadtest.web import runs
from shop.sales.guards import guard_words
from shop.web.decorators import live_page

PROGRAMS = {"MariaDB": "mariadbd", "ZooKeeper": "java"}


@live_page
def course(request: HttpRequest) -> HttpResponse:
    """Show all steps, each with its picture."""
    parts = [
        (part, [{"step": step, "chart": _picture(step.scenarios[0])} for step in part.steps])
        for part in PARTS
    ]
    picture = _picture("holder-paused", SCENARIOS["holder-paused"].title)
    return render(request, "learn/course.html", {"parts": parts, "picture": picture})


def _picture(scenario: str, title: str = "") -> SafeString:
    return timeline.draw(recording(scenario)["halves"][0], title=title, is_brief=True)


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
    """Show a row for each scenario: the guard that breaks and the one that holds, with links."""
    faults, rows = texts()["faults"], []
    for one in sorted(SCENARIOS.values(), key=lambda one: [*faults].index(one.fault)):
        found = recording(one.name)["halves"]
        halves = [(export.half(variant), guard_words(variant["guard"])) for variant in found]
        rows.append((one, step_of(one.name), faults[one.fault], halves))
    return render(request, "learn/grid.html", {"rows": rows})
