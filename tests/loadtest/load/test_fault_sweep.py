"""FAULTS row 15 on every backend, checked by the audit and the checker.

Several real processes sell out a sale while MariaDB is killed. SEED changes the order of the buyers
and ROUNDS the number of sales: `make faults SEED=7 ROUNDS=20`.
"""

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
BACKENDS = ("none", "database", "mysql_session", "redis", "redlock", "zookeeper")
FAULT, STRIKES = "kill-database", 5
pytestmark = pytest.mark.long


@cache
def swept() -> list[dict[str, Any]]:
    """Run the fault with each backend; the naive strategy promises nothing then."""
    plan = Plan(
        backends=BACKENDS,
        disciplines=("conditional",),
        buyers=100,
        stock=60,
        processes=4,
        threads=3,
        seed=SEED,
        repeats=ROUNDS,
        store="mariadb",
        fault=FAULT,
        at=0.1,
        strikes=STRIKES,
    )
    runs: list[dict[str, Any]] = run(plan)["runs"]
    return runs


@pytest.mark.faults(row=15)
@pytest.mark.parametrize("backend", BACKENDS)
def test_row_15_mariadb_killed_five_times_under_load(backend: str) -> None:
    runs = [one for one in swept() if one["backend"] == backend]
    assert len(runs) == ROUNDS
    for one in runs:
        checked = one["checked"]
        assert met(one), (one["verdict"], one["why"], checked["breaches"])
        assert checked["facts"]["faults"] == STRIKES
        record_fault(f"{FAULT} × {STRIKES}")
        assert (one["verdict"], checked["breaches"]) == ("ok", [])
        assert one["sold"] == one["stock"]
        record_outcome("sold out exactly; audit and checker ok")
