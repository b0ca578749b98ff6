"""Faults that are requested during a run: injected by a holder, with proof, and in the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from loadtest.kernel.faults import FAULTS, Injection, marks
from loadtest.load.plan import Plan
from loadtest.load.run import run
from loadtest.load.verdict import expected
from tests.fault_rows import record_fault

PLAN = Plan(backends=("redis",), disciplines=("conditional",), buyers=300, stock=200, processes=2)
TWO_RUNS = Plan(backends=("redis",), disciplines=("fenced",), buyers=20, stock=5, repeats=2)
Event = dict[str, Any]


def requested(
    *faults: str, plan: Plan = PLAN, when: Callable[[Event], bool] | None = None
) -> list[dict[str, Any]]:
    """Return the runs of a plan, in which the faults were requested after the first sale."""
    waiting = list(faults)
    for fault in faults:
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
        ("kill-holder", "ended by SIGKILL", "replaced"),
        ("kill-redis", "redis, process ", "back"),
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


def test_two_faults_requested_at_once_are_both_injected() -> None:
    (row,) = requested("kill-holder", "kill-holder")
    assert [fault["at"] is not None for fault in row["faults"]] == [True, True]


@pytest.mark.parametrize(
    "is_late",
    [
        lambda event: event["event"] == "run",
        lambda event: event["event"] == "progress" and event["served"] == TWO_RUNS.buyers,
    ],
    ids=["after the run", "when all are served"],
)
def test_fault_requested_too_late_is_not_injected(is_late: Callable[[Event], bool]) -> None:
    """It is reported as such, and the next run does not get it."""
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


@pytest.mark.parametrize(
    ("faults", "verdict"),
    [((), "ok"), (("kill-holder",), "ok"), (("pause-holder",), None), (("kill-redis",), None)],
)
def test_promise_of_naive_writes_considers_requested_faults(
    faults: tuple[str, ...], verdict: str | None
) -> None:
    plan = Plan(backends=("redis",), disciplines=("naive",))
    guard: Any = {"exclusion": "machines", "outlived": True, "faults": faults}
    assert expected(plan, discipline="naive", **guard) == verdict
    assert expected(plan, discipline="fenced", **guard) == "ok"


def test_marks_are_in_order_of_time() -> None:
    faults = [Injection(11.0, 1, "pause-holder", 14.0), Injection(12.5, 2, "kill-redis")]
    assert marks(faults, 10.0) == [(1.0, "pause-holder"), (2.5, "kill-redis"), (4.0, "resumed")]
