"""One run of a load test in this process: what it leaves open, and buyers that are not ready."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from django.db import connections

from devservers.process_pool import PoolFailed
from loadtest.kernel.topology import Stores
from loadtest.load import sale_run
from loadtest.load.buyers import SaleLoad
from loadtest.load.plan import Plan
from loadtest.load.sale import open_sale
from locking import locks
from shop.models import User
from tests.shop.making import put_in_force

PLAN = Plan(backends=("none",), buyers=4, stock=2, processes=2, threads=1, think_ms=0)


@pytest.fixture
def sell(transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that runs one sale, without requests on stdin."""
    put_in_force("none")
    customers = [User.objects.create(username=f"buyer {n}") for n in range(PLAN.buyers)]

    def run(name: str) -> list[Any]:
        sale, folder = open_sale(name, PLAN.stock), tmp_path / name
        folder.mkdir()
        connections.close_all()
        locks.close()
        load = SaleLoad(PLAN, sale.slug, customers, backend="none", history=folder)
        stores = cast(Stores, None)
        return sale_run.run_sale(load, stores, progress=lambda **now: None, passes_on=False)[1]

    silent, lab = os.pipe()
    with os.fdopen(silent) as stdin, os.fdopen(lab, "w"):
        monkeypatch.setattr("sys.stdin", stdin)
        yield run


def test_runs_leave_no_file_open(sell: Any) -> None:
    assert len(sell("first")) == PLAN.buyers
    before = len(os.listdir("/proc/self/fd"))
    for n in range(3):
        sell(f"again-{n}")
    assert len(os.listdir("/proc/self/fd")) <= before


def test_run_whose_buyers_were_not_ready_shows_nothing(
    sell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else it would look as if the lock had sold too little."""
    monkeypatch.setattr(sale_run, "START_TIMEOUT", 0.0)
    with pytest.raises(PoolFailed, match="not all buyers were ready within 0 s"):
        sell("late")
