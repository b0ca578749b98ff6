"""The classic failures of a distributed lock, each run on real servers: broken, then repaired.

    SCENARIOS["holder-paused"].title                # in the order of the scenario list
    report = run(["holder-paused"], progress)       # blocks; private servers and processes
    for result in report["scenarios"]:
        SCENARIOS[result["name"]].describe(result)  # three sentences in the active language
        for variant in result["halves"]:
            timeline.draw(variant), timeline.story(variant)
        export.shown(result)                        # the context of lab/_scenario.html

A result is {"name", "row", "verdict": "ok|failed|not-run", "why", "seconds", "halves": [...]}; a
variant is {"guard", "is_repaired", "facts", "events", "seconds"}. Everything is JSON.
"""

from collections.abc import Callable, Iterable
from typing import Any

from loadtest.kernel.session import events
from loadtest.kernel.topology import Topology
from loadtest.scenarios.catalogue import SCENARIOS

__all__ = ["SCENARIOS", "run"]

TOPOLOGY = Topology(servers=("redis",), environ={"PAY_WITHIN_SECONDS": "1"}, runs_without=True)
"""Orders expire after a second: the flash sales wait for it."""


def run(
    names: Iterable[str], progress: Callable[[dict[str, Any]], object] = lambda event: None
) -> dict[str, Any]:
    """Run the named scenarios and return their report; `progress` receives every event."""
    report: dict[str, Any] = {}
    asked = {"names": list(names)}
    told = events("loadtest.scenarios.runner", asked, TOPOLOGY, report, progress)
    found = [event["scenario"] for event in told if event["event"] == "scenario"]
    return {"versions": {}, **report, "scenarios": found}
