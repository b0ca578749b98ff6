"""Faults that are requested during a run: injected by a holder, with proof, and in the report."""

from typing import Any

import pytest

from loadtest.kernel.faults import FAULTS
from loadtest.load.plan import Plan
from loadtest.load.run import run
from tests.fault_rows import record_fault

REQUESTED = {1: "pause-holder", 2: "kill-redis", 4: "cut-replication"}
"""By run: the second one is requested when all buyers are served, the others after a sale."""
PLAN = Plan(
    backends=("redis",),
    disciplines=("conditional",),
    buyers=120,
    stock=100,
    processes=2,
    repeats=len(REQUESTED) + 1,
)


def test_requested_faults_are_injected_and_proved_unless_they_come_too_late() -> None:
    waiting = dict(REQUESTED)

    def listen(event: dict[str, Any]) -> str | None:
        if event["event"] == "progress" and (name := waiting.get(event["repeat"])):
            is_late = name == "kill-redis"
            if event["served"] == PLAN.buyers if is_late else event["sold"] > 0:
                record_fault(name)
                return waiting.pop(event["repeat"])
        return None

    paused, late, after, cut = run(PLAN, listen)["runs"]
    assert late["faults"] == [{"name": "kill-redis", "at": None, "proof": ""}]
    assert (after["faults"], after["marks"]) == ([], []), "not that of the run before"
    for row, name, proof, end in (
        (paused, "pause-holder", "stopped (state T)", "resumed"),
        (cut, "cut-replication", "replica cut off from process ", "promoted"),
    ):
        ((at, begun), (ended, word)) = row["marks"]
        assert (begun, word) == (name, end)
        (injected,) = row["faults"]
        assert (injected["name"], injected["at"]) == (name, at)
        assert proof in injected["proof"]
        assert 0 < at < ended
        assert row["checked"]["facts"]["faults"] == 1
    for row in (paused, late, after, cut):
        assert (row["verdict"], row["sold"]) == ("ok", PLAN.stock), row["why"]


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
    ("backend", "names"),
    [
        ("redis", {"kill-redis", "cut-replication"}),
        ("redlock", {"kill-redlock"}),
        ("zookeeper", {"kill-zookeeper"}),
        ("mysql_session", {"kill-database"}),
    ],
)
def test_only_the_server_of_a_lock_may_forget_it(backend: str, names: set[str]) -> None:
    """Or else two holders would be no breach while another server is down."""
    assert {name for name, fault in FAULTS.items() if fault.may_forget(backend)} == names
