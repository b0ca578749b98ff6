"""Plays what is asked for, {"names": [...]}, in the process that `Stores.direct` starts."""

import time
from contextlib import closing
from typing import Any

from django.core.management import call_command

from devservers import ServerError
from loadtest.faults.waiting import FaultFailed
from loadtest.load.director import versions
from loadtest.load.events import say
from loadtest.scenarios import SCENARIOS, Result, Scenario
from loadtest.scenarios.testbed import Crew, Played, Stage


def main(asked: dict[str, Any]) -> None:
    """Play them one after the other."""
    call_command("migrate", verbosity=0, interactive=False)
    say("versions", versions=versions())
    names = asked["names"]
    with closing(Crew()) as crew:
        for place, name in enumerate(names):
            scenario = SCENARIOS[name]

            def show(half: str, place: int = place, name: str = name) -> None:
                step = {"step": place + 1, "of": len(names), "system": f"{name}, {half}"}
                say("progress", name=name, half=half, **step)

            say("scenario", scenario=perform(scenario, crew, show))


def perform(scenario: Scenario, crew: Crew, show: Any = lambda half: None) -> Result:
    """Both halves of one, and the verdict."""
    began = time.monotonic()
    halves: list[dict[str, Any]] = []
    verdict, why = "not-run", ""
    try:
        for is_repaired, guard in ((False, scenario.broken), (True, scenario.repaired)):
            show("repaired" if is_repaired else "broken")
            played = half(scenario, crew, is_repaired=is_repaired)
            halves.append(
                {
                    "guard": guard,
                    "is_repaired": is_repaired,
                    "facts": played.facts,
                    "events": played.events,
                    "seconds": played.seconds,
                }
            )
        verdict, why = scenario.verdict(halves[0]["facts"], halves[1]["facts"])
    except (ServerError, FaultFailed) as error:
        why = str(error)
    return {
        "name": scenario.name,
        "row": scenario.row,
        "verdict": verdict,
        "why": why,
        "seconds": round(time.monotonic() - began, 1),
        "halves": halves,
    }


def half(scenario: Scenario, crew: Crew, *, is_repaired: bool) -> Played:
    """One of the two."""
    with closing(Stage(crew)) as stage:
        return stage.played(scenario.play(stage, is_repaired))
