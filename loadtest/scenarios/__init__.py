"""The classic failures of a distributed lock, each played on real servers: broken, then repaired.

    SCENARIOS["holder-paused"].title            # the registry, in the order of the gallery
    report = run(["holder-paused"], progress)   # blocks; private servers and processes, gone after
    for result in report["scenarios"]:
        tell(SCENARIOS[result["name"]], result)     # three sentences, in the reader's language
        for half in result["halves"]:
            timeline.draw(half), timeline.rows(half)
        export.shown(result)        # the context of lab/_scenario.html, which has all of these

A result is {"name", "row", "verdict": "ok|failed|not-run", "why", "seconds", "halves": [...]}; a
half is {"guard", "is_repaired", "facts", "events", "seconds"}. All of it is JSON, to be kept.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from loadtest.load.stores import Stores
from loadtest.scenarios.scenario import Result, Scenario, tell

__all__ = ["SCENARIOS", "Result", "Scenario", "run", "tell"]

_MODULES = (
    "holder_killed",
    "holder_paused",
    "gil_held",
    "failover",
    "redlock_amnesia",
    "redlock_clock_jump",
    "work_outlasts_lease",
    "herd_against_queue",
    "polling_against_push",
    "release_before_commit",
    "switch_under_load",
    "setnx_without_expiry",
    "crash_before_expire",
    "delete_successors_lock",
    "mysql_row_left",
)
SCENARIOS: dict[str, Scenario] = {
    one.name: one
    for one in (import_module(f"{__name__}.catalogue.{module}").SCENARIO for module in _MODULES)
}


def run(
    names: Iterable[str], progress: Callable[[dict[str, Any]], object] = lambda event: None
) -> dict[str, Any]:
    """Play these; `progress` hears {"event": "progress", "name", "half", "step", "of"}, ..."""
    report: dict[str, Any] = {"versions": {}, "scenarios": []}
    with Stores("sqlite", ()) as stores:
        for event in stores.direct("scenario", {"names": list(names)}):
            progress(event)
            if event["event"] == "versions":
                report["versions"] = event["versions"]
            elif event["event"] == "scenario":
                report["scenarios"].append(event["scenario"])
    return report
