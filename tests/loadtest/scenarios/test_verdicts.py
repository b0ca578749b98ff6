"""The verdict of a scenario, and the arguments and output of `lab scenario`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import translation

from devservers import ServerMissing
from devservers.faults.waiting import FaultFailed, until
from loadtest.cli import scenario as cli
from loadtest.scenarios import SCENARIOS, testbed
from loadtest.scenarios.runner import perform
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.testbed import SharedResources

SOME = SCENARIOS["setnx-without-expiry"]
Variant = Callable[[testbed.Testbed, bool], dict[str, Any]]


def scenario(run: Variant, *, requires_overlap: bool = False) -> Scenario:
    return replace(SOME, run=run, requires_overlap=requires_overlap)


def broke(*variants: bool) -> Variant:
    return lambda bed, is_repaired: {"broke": variants[is_repaired]}


def missing(bed: testbed.Testbed, is_repaired: bool) -> dict[str, Any]:
    raise ServerMissing("java")


def did_not_fire(bed: testbed.Testbed, is_repaired: bool) -> dict[str, Any]:
    until(lambda: False, "the fault", seconds=0.01)
    return {}


@pytest.mark.parametrize(
    ("failing", "verdict", "why"),
    [
        (scenario(broke(True, False)), "ok", ""),
        (scenario(broke(True, True)), "failed", "the repaired variant broke"),
        (scenario(broke(False, False)), "not-run", "the control did not break"),
        (
            scenario(broke(True, False), requires_overlap=True),
            "not-run",
            "no two holders were seen",
        ),
        (scenario(missing), "not-run", "java is not installed"),
        (scenario(did_not_fire), "not-run", "the fault did not come true"),
    ],
)
def test_verdict(failing: Scenario, verdict: str, why: str) -> None:
    result = perform(failing, SharedResources())
    assert result["verdict"] == verdict
    assert why in result["why"]
    assert bool(why) is bool(result["why"])


def test_scenario_that_did_not_run_has_no_sentences() -> None:
    assert SOME.describe(perform(scenario(missing), SharedResources())) == []


def test_fault_at_unreached_fail_point_is_not_run() -> None:
    """SIGSTOP is armed at a point that this purchase never reaches."""

    def run(bed: testbed.Testbed, is_repaired: bool) -> dict[str, Any]:
        bed.add_lock("none", "locking.backends.none.NoneBackend", "")
        process = bed.worker("buyer A")
        ask = {"alias": "none", "name": "n", "timeout": 1, "ttl": 1}
        process.start("acquire", fault="stop", at="nowhere", **ask)
        process.wait_for_fault()
        return {}

    shared = SharedResources()
    result = perform(scenario(run), shared)
    shared.close()
    assert result["verdict"] == "not-run"
    assert "was not injected" in result["why"]
    assert FaultFailed.__name__ not in result["why"]


def test_contradictory_recording_is_not_run_and_not_drawn() -> None:
    """Two processes get a lease of one name in one store, which no store grants."""

    def run(bed: testbed.Testbed, is_repaired: bool) -> dict[str, Any]:
        end = time.monotonic_ns() + 10**9
        for n, owner in enumerate("ab"):
            asked = {"id": n, "name": "n", "owner": owner, "backend": "redis", "deadline": end}
            bed.recorder.note("acquire", "invoke", **asked)
            bed.recorder.note("acquire", "ok", **asked, token=n)
        bed.note("mark", lane="lab", what="later")
        return {"broke": not is_repaired}

    result = perform(scenario(run), SharedResources())
    assert (result["verdict"], result["halves"]) == ("not-run", [])
    assert "the recording contradicts itself: redis: " in result["why"]


def test_rounds_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("lab", "scenario", "no-lock", "setnx-without-expiry", "--rounds=2", "--json")
    rows = json.loads(capsys.readouterr().out)["scenarios"]
    counted = {"ok": 2, "not-run": 0, "failed": 0, "recordings": 4, "why": {}}
    assert rows == [{"name": name, **counted} for name in ("no-lock", "setnx-without-expiry")]


def test_rounds_print_reasons(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    results = [
        {"name": "no-lock", "verdict": "ok", "why": "", "halves": [{}, {}]},
        *[{"name": "no-lock", "verdict": "not-run", "why": "it was slow", "halves": []}] * 2,
    ]
    monkeypatch.setattr(cli, "run", lambda names, show: {"versions": {}, "scenarios": results})
    with pytest.raises(SystemExit) as ended:
        call_command("lab", "scenario", "no-lock", "--rounds=3")
    printed = capsys.readouterr().out
    assert ended.value.code == 1
    assert re.search(r"no-lock +1 +2 +0\n", printed)
    assert "no-lock: it was slow (2 ×)\n2 recordings, none with two leases" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-lock", "--rounds", "0"], "--rounds must be between 1 and 1,000"),
        (["no-lock", "--rounds", "2", "--svg", "."], "Files show one round"),
        (["holder-pused"], "Did you mean 'holder-paused'\\? Choose from no-lock,"),
        (["holder-paused", "--write", "faults.md"], "--write needs all scenarios"),
        (["holder-paused", "--html", "/no/page.html"], "--html: cannot write /no/page.html"),
    ],
)
def test_bad_arguments_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        call_command("lab", "scenario", *words)
    assert caught.value.returncode == 2


def test_list_has_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("lab", "scenario", "--list", "--json")
    rows = json.loads(capsys.readouterr().out)["scenarios"]
    assert len(rows) == 17
    recipes = {"L1", "L2", "L3", "L5", "L6", "L7", "L11"}
    assert {row["row"] for row in rows} == recipes | {f"F{n}" for n in range(1, 10)}
    assert "holder-paused" in {row["name"] for row in rows}


def test_scenario_writes_page_and_charts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    with translation.override("en"):
        call_command(
            "lab", "scenario", "release-before-commit", "--html", str(page), "--svg", str(tmp_path)
        )
    output = capsys.readouterr().out
    assert "release-before-commit: as expected." in output
    assert "2 were sold of 1" in output.replace("\n", " ")
    html = page.read_text()
    assert html.count("<svg") == 2
    assert "class Player" in html
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in html
    assert {one.name for one in tmp_path.glob("*.svg")} == {
        "release-before-commit-broken.svg",
        "release-before-commit-repaired.svg",
    }
