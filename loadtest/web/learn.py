"""The course under /learn/: its map, and a page for each step. Both are public."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from devservers.programs import installed
from loadtest.charts import timeline
from loadtest.game.levels import LEVELS
from loadtest.models import LabRun
from loadtest.scenarios import SCENARIOS, export
from loadtest.scenarios.course import COURSE
from loadtest.scenarios.excerpts import diff
from loadtest.web import runs
from shop.web.decorators import live_page

PROGRAMS = {"MariaDB": "mariadbd", "ZooKeeper": "java"}


@live_page
def course(request: HttpRequest) -> HttpResponse:
    """Show all steps, each with its picture, and which of them were run here."""
    runs.fail_abandoned()
    latest = runs.latest_of_scenarios()
    steps = [
        {
            "step": step,
            "is_run": all(name in latest for name in step.scenarios),
            "chart": timeline.draw(
                shown_result(step.scenarios[0], latest)["halves"][0], is_brief=True
            ),
        }
        for step in COURSE
    ]
    return render(request, "learn/course.html", {"steps": steps})


@live_page
def lesson(request: HttpRequest, name: str) -> HttpResponse:
    """Show a step: its text, its code and the newest recording of its scenarios."""
    runs.fail_abandoned()
    latest = runs.latest_of_scenarios()
    number = next((n for n, step in enumerate(COURSE) if step.name == name), None)
    if number is None:
        raise Http404
    step = COURSE[number]
    context = {
        "number": number + 1,
        "of": len(COURSE),
        "step": step,
        "code": list(diff(step.broken, step.repaired)),
        "is_level": name in LEVELS,
        "recordings": [_recording(scenario, latest) for scenario in step.scenarios],
        "before": COURSE[number - 1] if number else None,
        "after": COURSE[number + 1] if number + 1 < len(COURSE) else None,
    }
    return render(request, "learn/lesson.html", context)


def shown_result(name: str, latest: dict[str, LabRun]) -> dict[str, Any]:
    """Return the newest result of a scenario here, or the recorded one."""
    run = latest.get(name)
    result: dict[str, Any] = run.report["scenarios"][0] if run and run.report else {}
    return result if len(result.get("halves", ())) == 2 else export.recorded()["results"][name]


def _recording(name: str, latest: dict[str, LabRun]) -> dict[str, Any]:
    scenario = SCENARIOS[name]
    return {
        **export.shown(shown_result(name, latest)),
        "run": latest.get(name),
        "seconds": export.recorded()["results"][name]["seconds"],
        "is_missing": bool(scenario.needs) and not installed(PROGRAMS[scenario.needs]),
    }
