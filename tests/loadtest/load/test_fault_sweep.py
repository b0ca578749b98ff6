"""FAULTS rows 1, 3, 5, 6, 14 and 15 on every backend, checked by the audit and the checker.

Several real processes sell out a sale while the fault is injected. SEED changes the order of the
buyers and ROUNDS the number of sales: `make faults SEED=7 ROUNDS=20`.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pytest

from loadtest.load.plan import Plan
from loadtest.load.report import met
from loadtest.load.run import run
from tests.fault_rows import record_fault, record_outcome

ROUNDS = int(os.environ.get("ROUNDS", "1"))
SEED = int(os.environ.get("SEED", "42"))
MACHINES = ("database", "mysql_session", "redis", "redlock", "zookeeper")
pytestmark = pytest.mark.long


@cache
def swept(fault: str, strikes: int) -> list[dict[str, Any]]:
    """Run the fault on each backend that it concerns, and on the control, with MariaDB."""
    server = fault.removeprefix("kill-")
    targets = (server,) if server in MACHINES and server != "database" else MACHINES
    is_holder = fault.endswith("holder")
    plan = Plan(
        backends=("none", *targets),
        # The naive strategy promises nothing when a server is killed.
        disciplines=("naive", "conditional") if is_holder else ("conditional",),
        buyers=100,
        stock=60 if strikes > 1 else 40,
        processes=4,
        threads=3,
        seed=SEED,
        repeats=ROUNDS,
        store="mariadb",
        fault=fault,
        at=0.1 if strikes > 1 else 0.5,
        strikes=strikes,
    )
    runs: list[dict[str, Any]] = run(plan)["runs"]
    return runs


def judge(backend: str, fault: str, strikes: int = 1) -> None:
    """Every run kept what its guard promises, and the fault struck in each."""
    runs = [one for one in swept(fault, strikes) if one["backend"] == backend]
    assert len(runs) == (2 if fault.endswith("holder") else 1) * ROUNDS
    for one in runs:
        assert met(one), (one["verdict"], one["why"], one["checked"]["breaches"])
        checked = one["checked"]
        assert checked["facts"]["faults"] == strikes
        record_fault(f"{fault} × {strikes}" if strikes > 1 else fault)
        if one["verdict"] == "ok":
            assert checked["breaches"] == []
            assert one["sold"] == one["stock"]
            record_outcome("sold out exactly; audit and checker ok")
        else:
            record_outcome(f"{one['verdict']} by {one['discipline']}, as it must be")


@pytest.mark.faults(row=1)
@pytest.mark.parametrize("backend", ["none", *MACHINES])
def test_row_1_a_holder_paused_in_a_crowd(backend: str) -> None:
    judge(backend, "pause-holder")


@pytest.mark.faults(row=3)
@pytest.mark.parametrize("backend", ["none", *MACHINES])
def test_row_3_a_holder_killed_in_a_crowd(backend: str) -> None:
    judge(backend, "kill-holder")


@pytest.mark.parametrize(
    ("backend", "fault"),
    [
        pytest.param("redis", "kill-redis", marks=pytest.mark.faults(row=5)),
        pytest.param("redlock", "kill-redlock", marks=pytest.mark.faults(row=6)),
        pytest.param("zookeeper", "kill-zookeeper", marks=pytest.mark.faults(row=14)),
    ],
)
def test_the_locks_server_killed_in_a_crowd(backend: str, fault: str) -> None:
    judge(backend, fault)


@pytest.mark.faults(row=15)
@pytest.mark.parametrize("backend", ["none", *MACHINES])
def test_row_15_mariadb_killed_five_times_under_load(backend: str) -> None:
    judge(backend, "kill-database", strikes=5)
