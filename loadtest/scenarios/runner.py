"""Run scenarios, {"names": [...]}, in the process that `PrivateStores.run_experiment` starts."""

import time
from contextlib import closing
from typing import Any

from devservers import ServerError
from devservers.faults.waiting import FaultFailed
from devservers.faults.worker import emit
from loadtest.charts import timeline_data
from loadtest.scenarios.catalogue import SCENARIOS
from loadtest.scenarios.scenario import Result, Scenario
from loadtest.scenarios.testbed import SharedResources, Testbed


def main(asked: dict[str, Any]) -> None:
    """Run the named scenarios one after the other."""
    names = asked["names"]
    with closing(SharedResources()) as shared:
        for place, name in enumerate(names):
            scenario = SCENARIOS[name]

            def show(variant: str, place: int = place, name: str = name) -> None:
                step = {"step": place + 1, "of": len(names), "system": f"{name}, {variant}"}
                emit("progress", name=name, half=variant, **step)

            emit("scenario", scenario=perform(scenario, shared, show))


def perform(
    scenario: Scenario, shared: SharedResources, show: Any = lambda variant: None
) -> Result:
    """Run both variants of a scenario; return them and the verdict."""
    began = time.monotonic()
    variants: list[dict[str, Any]] = []
    verdict, why = "not-run", ""
    try:
        for is_repaired, guard in ((False, scenario.broken), (True, scenario.repaired)):
            show("repaired" if is_repaired else "broken")
            with closing(Testbed(shared)) as testbed:
                run = testbed.finish(scenario.run(testbed, is_repaired))
            variant = {"guard": guard, "is_repaired": is_repaired, **run}
            if found := timeline_data.read(variant).contradictions():
                raise FaultFailed(f"the recording contradicts itself: {found[0]}")
            variants.append(variant)  # only what may be drawn
        verdict, why = scenario.verdict(variants[0]["facts"], variants[1]["facts"])
    except (ServerError, FaultFailed) as error:
        why = str(error)
    return {
        "name": scenario.name,
        "row": scenario.row,
        "verdict": verdict,
        "why": why,
        "seconds": round(time.monotonic() - began, 1),
        "halves": variants,
    }
