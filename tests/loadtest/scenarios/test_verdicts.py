"""A scenario that proved nothing says so, and the command's exit code with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from devservers import ServerMissing
from loadtest.faults.waiting import FaultFailed, until
from loadtest.scenarios import SCENARIOS, tell
from loadtest.scenarios.runner import perform
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.testbed import Crew, Stage

SOME = SCENARIOS["setnx-without-expiry"]
Play = Callable[[Stage, bool], dict[str, Any]]


def scenario(play: Play, *, is_overlap: bool = False) -> Scenario:
    return replace(SOME, play=play, is_overlap=is_overlap)


def broke(*halves: bool) -> Play:
    return lambda stage, is_repaired: {"broke": halves[is_repaired]}


def missing(stage: Stage, is_repaired: bool) -> dict[str, Any]:
    raise ServerMissing("java")


def did_not_fire(stage: Stage, is_repaired: bool) -> dict[str, Any]:
    until(lambda: False, "the fault", seconds=0.01)
    return {}


@pytest.mark.parametrize(
    ("played", "verdict", "why"),
    [
        (scenario(broke(True, False)), "ok", ""),
        (scenario(broke(True, True)), "failed", "the repaired half broke"),
        (scenario(broke(False, False)), "not-run", "the control did not break"),
        (scenario(broke(True, False), is_overlap=True), "not-run", "no two holders were seen"),
        (scenario(missing), "not-run", "java is not installed"),
        (scenario(did_not_fire), "not-run", "the fault did not come true"),
    ],
)
def test_verdict(played: Scenario, verdict: str, why: str) -> None:
    result = perform(played, Crew())
    assert result["verdict"] == verdict
    assert why in result["why"]
    assert bool(why) is bool(result["why"])


def test_what_was_not_played_is_not_told() -> None:
    assert tell(SOME, perform(scenario(missing), Crew())) == []


def test_a_fault_at_a_point_that_is_never_reached_is_no_fault() -> None:
    """SIGSTOP is armed where this purchase does not come by: nothing may pass for a pause."""

    def play(stage: Stage, is_repaired: bool) -> dict[str, Any]:
        stage.lock("none", "locking.backends.none.NoneBackend", "")
        actor = stage.actor("buyer A")
        ask = {"alias": "none", "name": "n", "timeout": 1, "ttl": 1}
        actor.start("acquire", fault="stop", at="nowhere", **ask)
        actor.struck()
        return {}

    crew = Crew()
    result = perform(scenario(play), crew)
    crew.close()
    assert result["verdict"] == "not-run"
    assert "did not fire" in result["why"]
    assert FaultFailed.__name__ not in result["why"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["holder-pused"], "no scenario 'holder-pused'; there are: holder-killed,"),
        ([], "name a scenario, or all"),
        (["holder-paused", "--write", "faults.md"], "--write needs all"),
        (["holder-paused", "--html", "/no/page.html"], "html: /no/page.html cannot be written"),
    ],
)
def test_bad_arguments(words: list[str], said: str) -> None:
    with pytest.raises(CommandError, match=said) as caught:
        call_command("lab", "scenario", *words)
    assert caught.value.returncode == 2


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("lab", "scenario", "--list", "--json")
    rows = json.loads(capsys.readouterr().out)["scenarios"]
    assert len(rows) == 15
    recipes = {"L3", "L5", "L6", "L7", "L11"}
    assert {row["row"] for row in rows} == recipes | {f"F{n}" for n in range(1, 10)}
    assert "holder-paused" in {row["name"] for row in rows}


def test_a_real_one_with_its_page_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    call_command(
        "lab", "scenario", "release-before-commit", "--html", str(page), "--svg", str(tmp_path)
    )
    said = capsys.readouterr().out
    assert "release-before-commit  ok" in said
    assert "2 were sold of 1" in said.replace("\n", " ")
    html = page.read_text()
    assert html.count("<svg") == 2
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in html
    assert {one.name for one in tmp_path.glob("*.svg")} == {
        "release-before-commit-broken.svg",
        "release-before-commit-repaired.svg",
    }
