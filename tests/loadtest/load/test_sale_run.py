"""One run of a load test in this process: what it leaves open, and buyers that are not ready."""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from django.db import connections

from devservers import Redis
from devservers.faults.waiting import until
from devservers.process_pool import PoolFailed
from loadtest.kernel.history import Recorder
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
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without requests on stdin."""
    ours, lab = os.pipe()
    with os.fdopen(ours) as stdin, os.fdopen(lab, "w"):
        monkeypatch.setattr("sys.stdin", stdin)
        yield


@pytest.fixture
def sell(silent: None, transactional_db: None, tmp_path: Path) -> Any:
    """A function that runs one sale."""
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

    return run


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


@pytest.mark.parametrize(("served", "hit"), [(PLAN.buyers - 1, True), (PLAN.buyers, False)])
def test_server_is_hit_only_while_buyers_are_left(
    served: int, hit: bool, tmp_path: Path, silent: None
) -> None:
    """Or else a run that no fault has disturbed would prove that its lock survives one."""
    plan = replace(PLAN, fault="kill-redis")
    load = SaleLoad(plan, "sale", [User()] * plan.buyers, backend="redis", history=tmp_path)
    load.sold[0], load.served[0] = 1, served
    load.try_injecting()
    with Redis(prefer="embedded") as redis, closing(Recorder(tmp_path, "lab")) as recorder:
        stores = cast(Stores, SimpleNamespace(servers={"redis": redis}))
        monitor = sale_run.FaultMonitor(load, recorder, stores, passes_on=False)
        monitor.listen()
        until(lambda: monitor.is_idle, "the end of the fault")
    assert [bool(one.proof) for one in monitor.injections] == [True] * hit
