"""Scenarios of holders that are paused, killed or slow, on real servers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fault_rows import SLACK
from tests.loadtest.scenarios.outcomes import facts, results_of, sold_twice_then_once

results = results_of(
    "no-lock",
    "lock-of-one-process",
    "holder-paused",
    "gil-held",
    "work-outlasts-lease",
    "release-before-commit",
    "switch-under-load",
    "holder-killed",
)


@pytest.mark.parametrize("name", ["no-lock", "lock-of-one-process"])
def test_race_between_two_processes(results: dict[str, Any], name: str) -> None:
    broken, repaired = sold_twice_then_once(results[name])
    assert broken["overlaps"] >= 1
    assert broken["second_told"] == "order"
    assert repaired["overlaps"] == 0
    assert repaired["second_told_later"] == "sold_out"


@pytest.mark.faults(row=1, backend="redis", xf=True)
def test_holder_paused(results: dict[str, Any]) -> None:
    broken, repaired = sold_twice_then_once(results["holder-paused"])
    assert broken["paused"] >= 2 * broken["ttl"]
    assert broken["overlaps"] >= 1
    assert broken["lease_overlaps"] == 0, "the lock did what it could"
    assert repaired["overlaps"] >= 1, "the same pause"
    assert (broken["refused"], repaired["refused"]) == (0, 1)


@pytest.mark.faults(row=2, backend="redis", xf=True)
def test_gil_held(results: dict[str, Any]) -> None:
    broken, repaired = sold_twice_then_once(results["gil-held"])
    assert broken["overlaps"] >= 1
    assert repaired["overlaps"] >= 1
    assert (broken["refused"], repaired["refused"]) == (0, 1)


@pytest.mark.faults(row="F6", backend="redis")
def test_work_outlasts_lease(results: dict[str, Any]) -> None:
    broken, repaired = sold_twice_then_once(results["work-outlasts-lease"])
    assert broken["second_told"] == "order"
    assert repaired["second_told"] == "busy"
    assert repaired["second_waited"] >= 2 * repaired["ttl"] - 0.1
    assert repaired["second_told_later"] == "sold_out"
    assert repaired["overlaps"] == 0


@pytest.mark.faults(row="F8", backend="redis")
def test_release_before_commit(results: dict[str, Any]) -> None:
    broken, repaired = sold_twice_then_once(results["release-before-commit"])
    assert broken["overlaps"] == 0, "the lock itself was never held twice"
    assert repaired["second_told"] == "busy"


@pytest.mark.faults(row=25, backend="redis to database")
def test_switch_under_load(results: dict[str, Any]) -> None:
    broken, repaired = facts(results["switch-under-load"])
    assert broken["behind"] == broken["stock"] == 4
    assert broken["sold"] > 4
    assert broken["lease_overlaps"] >= 1
    assert (repaired["sold"], repaired["oversold"], repaired["behind"]) == (4, 0, 0)
    assert repaired["lease_overlaps"] == 0
    assert repaired["drained"] >= 1.0, "no process acts on a policy that is older than a second"


@pytest.mark.faults(row=3, backend="redis, zookeeper")
def test_holder_killed(results: dict[str, Any]) -> None:
    broken, repaired = facts(results["holder-killed"])
    assert broken["waited"] > 3
    assert broken["waited"] < broken["ttl"] + SLACK
    assert repaired["waited"] < repaired["ttl"] + SLACK
    assert repaired["session_waited"] < repaired["ttl"] + 1 + SLACK
