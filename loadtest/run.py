"""Runs a plan: private stores, the director in them, and its report."""

from collections.abc import Callable
from typing import Any

from loadtest.plan import Plan
from loadtest.stores import Stores
from loadtest.verdict import not_run

Report = dict[str, Any]
Progress = Callable[[dict[str, Any]], object]


def run(plan: Plan, progress: Progress = lambda event: None) -> Report:
    """The report of the plan, as `lab run --json` prints it; `progress` hears every event."""
    report: Report = {"settings": plan.settings(), "versions": {}, "runs": []}
    with Stores(plan.store, plan.backends) as stores:
        if "database" in stores.missing:
            report["runs"] = _none_of_them(plan, stores.missing["database"])
            return report
        asked = {"plan": plan.settings(), "missing": stores.missing}
        for event in stores.direct("run", asked):
            progress(event)
            if event["event"] == "versions":
                report["versions"] = event["versions"]
            elif event["event"] == "run":
                report["runs"].append(event["run"])
    return report


def _none_of_them(plan: Plan, why: str) -> list[dict[str, Any]]:
    return [
        {
            "backend": backend,
            "discipline": discipline,
            "repeat": repeat,
            **not_run(plan, why),
        }
        for repeat in range(1, plan.repeats + 1)
        for discipline in plan.disciplines
        for backend in plan.backends
    ]
