"""Faults that are requested during a run: injected by a holder, with proof, and in the report."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.kernel.faults import FAULTS, Injection, marks
from loadtest.load.plan import Plan
from loadtest.load.run import run
from loadtest.load.verdict import expected
from tests.fault_rows import record_fault

PLAN = Plan(backends=("redis",), disciplines=("conditional",), buyers=300, stock=200, processes=2)


def requested(fault: str, plan: Plan = PLAN) -> dict[str, Any]:
    """Return the only run of a plan, in which the fault was requested after the first sale."""
    waiting = [fault]

    def listen(event: dict[str, Any]) -> str | None:
        is_selling = event["event"] == "progress" and event["sold"] > 0
        return waiting.pop() if is_selling and waiting else None

    (row,) = run(plan, listen)["runs"]
    record_fault(fault)
    found: dict[str, Any] = row
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
    row = requested(fault)
    assert (row["verdict"], row["sold"]) == ("ok", 200), row["why"]
    ((at, name), (ended, word)) = row["marks"]
    assert (name, word) == (fault, end)
    (injected,) = row["faults"]
    assert (injected["name"], injected["at"]) == (fault, at)
    assert proof in injected["proof"]
    assert 0 < at < ended
    assert row["checked"]["facts"]["faults"] == 1


def test_two_faults_requested_at_once_are_both_injected() -> None:
    waiting = ["kill-holder", "kill-holder"]

    def listen(event: dict[str, Any]) -> str | None:
        is_selling = event["event"] == "progress" and event["sold"] > 0
        return waiting.pop() if is_selling and waiting else None

    (row,) = run(PLAN, listen)["runs"]
    record_fault("kill-holder")
    assert [fault["at"] is not None for fault in row["faults"]] == [True, True]


def test_fault_requested_too_late_is_reported_as_not_injected() -> None:
    """The run has ended; the next one does not get its fault."""
    plan = Plan(backends=("redis",), disciplines=("fenced",), buyers=20, stock=5, repeats=2)
    late = ["kill-redis"]

    def listen(event: dict[str, Any]) -> str | None:
        return late.pop() if event["event"] == "run" and late else None

    first, second = run(plan, listen)["runs"]
    assert first["faults"] == [{"name": "kill-redis", "at": None, "proof": ""}]
    assert (second["faults"], second["marks"], second["verdict"]) == ([], [], "ok")


def test_requested_fault_of_an_earlier_run_is_not_injected_into_the_next() -> None:
    """It is requested when every buyer has been served."""
    plan = Plan(backends=("redis",), disciplines=("fenced",), buyers=20, stock=5, repeats=2)
    late = ["kill-redis"]

    def listen(event: dict[str, Any]) -> str | None:
        is_served = event["event"] == "progress" and event["served"] == plan.buyers
        return late.pop() if is_served and late else None

    first, second = run(plan, listen)["runs"]
    assert [fault["at"] for fault in first["faults"]] == [None]
    assert (second["faults"], second["verdict"]) == ([], "ok")


@pytest.mark.parametrize(
    ("backend", "store", "names"),
    [
        ("none", "sqlite", set()),
        ("none", "mariadb", {"kill-database"}),
        ("none", "postgresql", {"kill-database"}),
        ("process", "sqlite", {"pause-holder", "kill-holder"}),
        ("database", "sqlite", {"pause-holder", "kill-holder"}),
        ("redis", "sqlite", {"pause-holder", "kill-holder", "kill-redis", "cut-replication"}),
        ("redlock", "sqlite", {"pause-holder", "kill-holder", "kill-redlock"}),
        ("zookeeper", "sqlite", {"pause-holder", "kill-holder", "kill-zookeeper"}),
    ],
)
def test_faults_apply_to_the_lock_that_runs(backend: str, store: str, names: set[str]) -> None:
    assert {name for name, fault in FAULTS.items() if fault.applies(backend, store)} == names


@pytest.mark.parametrize(
    ("backend_faults", "verdict"),
    [((), "ok"), (("kill-holder",), "ok"), (("pause-holder",), None), (("kill-redis",), None)],
)
def test_promise_of_naive_writes_considers_requested_faults(
    backend_faults: tuple[str, ...], verdict: str | None
) -> None:
    plan = Plan(backends=("redis",), disciplines=("naive",))
    guard: Any = {"exclusion": "machines", "discipline": "naive", "outlived": True}
    assert expected(plan, **guard, faults=backend_faults) == verdict
    assert expected(plan, **{**guard, "discipline": "fenced"}, faults=backend_faults) == "ok"


def test_marks_are_in_order_of_time() -> None:
    faults = [Injection(11.0, 1, "pause-holder", 14.0), Injection(12.5, 2, "kill-redis")]
    assert marks(faults, 10.0) == [
        (1.0, "pause-holder"),
        (2.5, "kill-redis"),
        (4.0, "resumed"),
    ]
