"""The verdict of a scenario, and the arguments and output of `lab scenario`."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import translation

from devservers import ServerMissing
from devservers.faults.waiting import until
from loadtest.cli.scenario import counted
from loadtest.kernel.topology import Stores, Topology
from loadtest.scenarios import SCENARIOS, testbed
from loadtest.scenarios.export import recorded
from loadtest.scenarios.runner import perform

SOME = SCENARIOS["setnx-without-expiry"]
Variant = Callable[[testbed.Testbed, bool], dict[str, Any]]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    with Topology().start(tmp_path) as started:
        yield started


def broke(*variants: bool) -> Variant:
    return lambda bed, is_repaired: {"broke": variants[is_repaired]}


def missing(bed: testbed.Testbed, is_repaired: bool) -> dict[str, Any]:
    raise ServerMissing("java")


def did_not_fire(bed: testbed.Testbed, is_repaired: bool) -> dict[str, Any]:
    until(lambda: False, "the fault", seconds=0.01)
    return {}


def misses_its_fail_point(bed: testbed.Testbed, is_repaired: bool) -> dict[str, Any]:
    """Arm SIGSTOP at a point that this purchase never reaches."""
    bed.add_lock("none", "locking.backends.none.NoneBackend", LOCATION="")
    process = bed.worker("buyer A")
    ask = {"alias": "none", "name": "n", "timeout": 1, "ttl": 1}
    process.start("acquire", fault="stop", at="nowhere", **ask)
    process.wait_for_fault()
    return {}


def contradicts_itself(bed: testbed.Testbed, is_repaired: bool) -> dict[str, Any]:
    """Record a lease of one name in one store for two processes, which no store grants."""
    end = time.monotonic_ns() + 10**9
    for n, owner in enumerate("ab"):
        asked = {"id": n, "name": "n", "owner": owner, "backend": "redis", "deadline": end}
        bed.recorder.note("acquire", "invoke", **asked)
        bed.recorder.note("acquire", "ok", **asked, token=n)
    bed.note("mark", lane="lab", what="later")
    return {"broke": not is_repaired}


@pytest.mark.parametrize(
    ("run", "verdict", "why"),
    [
        (broke(True, False), "ok", ""),
        (broke(True, True), "failed", "the repaired variant broke"),
        (broke(False, False), "not-run", "the control did not break"),
        (missing, "not-run", "java is not installed"),
        (did_not_fire, "not-run", "the fault did not come true"),
        (misses_its_fail_point, "not-run", "the fault 'stop' was not injected"),
        (contradicts_itself, "not-run", "the recording contradicts itself: redis: "),
    ],
)
def test_verdict(run: Variant, verdict: str, why: str, stores: Stores) -> None:
    result = perform(replace(SOME, run=run), stores)
    assert result["verdict"] == verdict
    assert why in result["why"]
    assert bool(why) is bool(result["why"])
    if len(result["halves"]) < 2:
        assert SOME.describe(result) == []


def test_rounds_are_counted() -> None:
    shown = recorded()["results"]["no-lock"]
    failed = shown | {"verdict": "failed", "why": "it broke"}
    (row,) = counted({"versions": {}, "scenarios": [shown, failed, shown]})["scenarios"]
    counts = {"ok": 2, "not-run": 0, "failed": 1, "recordings": 6, "why": {"it broke": 1}}
    assert row == {"name": "no-lock", **counts}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Name scenarios of --list"),
        (["no-lock", "--rounds", "0"], "--rounds must be between 1 and 1,000"),
        (["no-lock", "--rounds", "2", "--svg", "."], "Files show one round"),
        (["holder-pused"], "Did you mean 'holder-paused'\\? Choose from no-lock,"),
        (["holder-paused", "--write", "faults.md"], "--write needs all scenarios"),
        (["holder-paused", "--html", "/no/page.html"], "--html: cannot write /no/page.html"),
        (["holder-paused", "--html", f"{__file__}/page"], "--html: cannot write "),
        (["holder-paused", "--svg", f"{__file__}/charts"], "--svg: .*Not a directory"),
    ],
)
def test_bad_arguments_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        call_command("lab", "scenario", *words)
    assert caught.value.returncode == 2


def test_list_has_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("lab", "scenario", "--list", "--json")
    rows = json.loads(capsys.readouterr().out)["scenarios"]
    assert [row["name"] for row in rows] == list(SCENARIOS)
    recipes = {"L1", "L2", "L3", "L5", "L6", "L7", "L11"}
    flash_sales = {f"FS{n}" for n in range(1, 7)}
    assert {row["row"] for row in rows} == recipes | {f"F{n}" for n in range(1, 11)} | flash_sales


def test_scenario_writes_page_and_charts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, name = tmp_path / "page.html", "release-before-commit"
    with translation.override("en"):
        call_command("lab", "scenario", name, "--html", str(page), "--svg", str(tmp_path))
    assert f"{name}: reproduced." in capsys.readouterr().out
    html = page.read_text()
    assert html.count("<svg") == 2
    assert "class Player" in html
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")
    files = {one.name for one in tmp_path.glob("*.svg")}
    assert files == {f"{name}-broken.svg", f"{name}-repaired.svg"}
