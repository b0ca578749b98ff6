"""Faults that are requested during a run: injected by a holder, with proof, and in the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from loadtest.kernel.faults import FAULTS
from loadtest.load.plan import Plan
from loadtest.load.run import run
from tests.fault_rows import record_fault

PLAN = Plan(backends=("redis",), disciplines=("conditional",), buyers=300, stock=200, processes=2)
TWO_RUNS = Plan(backends=("redis",), disciplines=("fenced",), buyers=20, stock=5, repeats=2)
Event = dict[str, Any]


def requested(
    fault: str, *, plan: Plan = PLAN, when: Callable[[Event], bool] | None = None
) -> list[dict[str, Any]]:
    """Return the runs of a plan, in which the fault was requested once, after the first sale."""
    waiting = [fault]
    record_fault(fault)

    def listen(event: Event) -> str | None:
        is_due = when(event) if when else event["event"] == "progress" and event["sold"] > 0
        return waiting.pop() if is_due and waiting else None

    found: list[dict[str, Any]] = run(plan, listen)["runs"]
    return found


@pytest.mark.parametrize(
    ("fault", "proof", "end"),
    [
        ("pause-holder", "stopped (state T)", "resumed"),
        ("cut-replication", "replica cut off from process ", "promoted"),
    ],
)
def test_requested_fault_is_injected_and_proved(fault: str, proof: str, end: str) -> None:
    (row,) = requested(fault)
    assert (row["verdict"], row["sold"]) == ("ok", 200), row["why"]
    ((at, name), (ended, word)) = row["marks"]
    assert (name, word) == (fault, end)
    (injected,) = row["faults"]
    assert (injected["name"], injected["at"]) == (fault, at)
    assert proof in injected["proof"]
    assert 0 < at < ended
    assert row["checked"]["facts"]["faults"] == 1


def test_fault_requested_too_late_is_not_injected() -> None:
    """It is reported as such, and the next run does not get it."""

    def is_late(event: Event) -> bool:
        return event["event"] == "progress" and event["served"] == TWO_RUNS.buyers

    first, second = requested("kill-redis", plan=TWO_RUNS, when=is_late)
    assert first["faults"] == [{"name": "kill-redis", "at": None, "proof": ""}]
    assert (second["faults"], second["marks"], second["verdict"]) == ([], [], "ok")


OF_HOLDERS = {"pause-holder", "kill-holder"}


@pytest.mark.parametrize(
    ("backend", "store", "names"),
    [
        ("none", "sqlite", set()),
        ("none", "mariadb", {"kill-database"}),
        ("none", "postgresql", {"kill-database"}),
        ("process", "sqlite", OF_HOLDERS),
        ("redis", "sqlite", {*OF_HOLDERS, "kill-redis", "cut-replication"}),
        ("redlock", "sqlite", {*OF_HOLDERS, "kill-redlock"}),
        ("zookeeper", "sqlite", {*OF_HOLDERS, "kill-zookeeper"}),
    ],
)
def test_faults_apply_to_the_lock_that_runs(backend: str, store: str, names: set[str]) -> None:
    assert {name for name, fault in FAULTS.items() if fault.applies(backend, store)} == names
