"""Run scenarios, {"names": [...]}, one after the other."""

import time
from contextlib import closing
from functools import partial
from typing import Any

from devservers import ServerError
from devservers.faults.waiting import FaultFailed
from devservers.faults.worker import emit
from loadtest.charts.timeline_data import TimelineData
from loadtest.kernel.topology import Stores
from loadtest.scenarios.catalogue import SCENARIOS
from loadtest.scenarios.scenario import Result, Scenario
from loadtest.scenarios.testbed import Testbed


def main(asked: dict[str, Any], stores: Stores) -> None:
    """Run the named scenarios."""
    for step, name in enumerate(asked["names"], 1):
        show = partial(emit, "progress", step=step, of=len(asked["names"]))
        emit("scenario", scenario=perform(SCENARIOS[name], stores, show))


def perform(scenario: Scenario, stores: Stores, show: Any = lambda **step: None) -> Result:
    """Run both variants of a scenario; return them and the verdict."""
    began = time.monotonic()
    variants: list[dict[str, Any]] = []
    try:
        for is_repaired, guard in ((False, scenario.broken), (True, scenario.repaired)):
            show(system=f"{scenario.name}, {'repaired' if is_repaired else 'broken'}")
            with closing(Testbed(stores)) as testbed:
                run = testbed.finish(scenario.run(testbed, is_repaired))
            variant = {"guard": guard, "is_repaired": is_repaired, **run}
            if wrong := TimelineData(variant).contradictions():
                raise FaultFailed(f"the recording contradicts itself: {wrong[0]}")
            variants.append(variant)  # only what may be drawn
        verdict, why = scenario.verdict(variants[0]["facts"], variants[1]["facts"])
    except (ServerError, FaultFailed) as error:
        verdict, why = "not-run", str(error)
    return {
        "name": scenario.name,
        "row": scenario.row,
        "verdict": verdict,
        "why": why,
        "seconds": round(time.monotonic() - began, 1),
        "halves": variants,
    }
