"""The model of purchases accepts recorded runs of the shop, and rejects those of mutants.

RUNS=340 pytest tests/verification/protocols/test_conformance.py -k accepted repeats the 1,020 runs.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from devservers.faults.waiting import WAIT_TIMEOUT
from inventory import stock
from inventory.models import WriteStrategy
from loadtest.kernel.history import Event, Recorder, history
from loadtest.scenarios import run as run_scenarios
from locking import locks
from locking.failpoints import armed
from shop.errors import ShopError
from shop.models import Order, Sale
from shop.purchase.place_order import place_order
from shop.sales.purchase_request import PurchaseRequest
from shop.sales.stock_lock import lock_name
from tests.loadtest.kernel.recorded import Shop, shop
from tests.shop.making import a_customer, a_sale, fresh, put_in_force
from tests.verification.protocols.conformance import accepts

__all__ = ["shop"]
pytestmark = pytest.mark.django_db(transaction=True)
RUNS = int(os.environ.get("RUNS", "8"))
BUYERS, UNITS = 4, 2
mutant = pytest.mark.parametrize("is_mutant", [False, True])


def record(folder: Path, sale: Sale, *, break_at: int) -> list[Event]:
    """Let four threads buy two units; break the lock after read number `break_at`, if any."""
    locks.close()
    recorder = Recorder(folder, "shop")
    recorder.watch(locks["redis"])
    recorder.watch_purchases()
    customers = [a_customer().pk for _ in range(BUYERS)]
    start, reads = threading.Barrier(BUYERS), iter(range(100))

    def buy(customer: int) -> None:
        start.wait()
        try:
            place_order(
                PurchaseRequest(customer_id=customer, sale=fresh(sale), quantity=1, key="k")
            )
        except ShopError:
            pass  # sold out, or busy after a broken lock
        finally:
            connections.close_all()

    def break_lock() -> None:
        if next(reads) == break_at:
            locks["redis"].break_lock(lock_name(sale.pk))

    with armed("stock.read", break_lock), ThreadPoolExecutor(BUYERS) as pool:
        list(pool.map(buy, customers))
    recorder.close()
    return history(folder)


@pytest.mark.parametrize("strategy", WriteStrategy.values)
def test_recorded_runs_are_accepted(strategy: str, tmp_path: Path, settings: Any) -> None:
    """Every second run of a strategy with a fence loses its lock once."""
    settings.PURCHASES_PER_GRANT = 1  # these buyers are threads, and each asks for itself
    put_in_force("redis", strategy)
    chance = random.Random(RUNS)
    sold = events = 0
    for number in range(RUNS):
        folder = tmp_path / str(number)
        folder.mkdir()
        sale = a_sale(stock=UNITS)
        is_fenced = strategy != WriteStrategy.NAIVE
        break_at = chance.randrange(BUYERS) if is_fenced and number % 2 else -1
        run = record(folder, sale, break_at=break_at)
        # On a busy machine a lease may end by itself; `naive` may then oversell.
        pauses = is_fenced or any(event["do"] == "lost" for event in run)
        assert accepts(run, strategy=strategy, units=UNITS, pauses=pauses), folder
        sold += Order.objects.filter(sale=sale).count()
        events += len(run)
    assert sold > RUNS
    assert events > 10 * RUNS
    locks.close()


def buy_last_unit(shop: Shop, inject: Callable[[], object] = lambda: None) -> list[Event]:
    """Stop a buyer between read and write while another one buys the same last unit."""
    shop.recorder.watch(locks["redis"])
    shop.buy_meanwhile(shop.buy, inject=inject)
    return history(shop.folder)


@mutant
def test_run_without_a_lock_is_rejected(
    shop: Shop, is_mutant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_force("redis", "naive")
    if is_mutant:
        for name in ("acquire", "release"):
            monkeypatch.setattr(locks["redis"].backend, name, getattr(locks["none"].backend, name))
    run = buy_last_unit(shop)
    assert accepts(run, strategy="naive", units=1, pauses=False) is not is_mutant
    assert Order.objects.count() == 1 + is_mutant


@mutant
def test_run_without_a_fence_is_rejected(
    shop: Shop, is_mutant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of the first holder is broken, so that two hold it."""
    put_in_force("redis", "fenced")
    if is_mutant:
        write, _, where = stock.WRITE_CLAIMED.partition("WHERE")
        where = where.replace("fence_epoch =", "-1 <>").replace("fence_token =", "-1 <>")
        monkeypatch.setattr(stock, "WRITE_CLAIMED", f"{write}WHERE{where}")
    name = lock_name(shop.sale.pk)
    run = buy_last_unit(shop, lambda: locks["redis"].break_lock(name))
    assert accepts(run, strategy="fenced", units=1, pauses=True) is not is_mutant
    assert Order.objects.count() == 1 + is_mutant


@mutant
def test_run_without_a_check_of_the_quantity_is_rejected(
    shop: Shop, is_mutant: bool, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.LOCK_TIMEOUT = WAIT_TIMEOUT  # the first buyer's second attempt oversells
    put_in_force("redis", "conditional")
    if is_mutant:
        change = stock.CHANGE.replace("quantity >= %s", "0 < %s")
        floor = "quantity = CASE WHEN quantity > 0 THEN quantity + %s ELSE 0 END"
        monkeypatch.setattr(stock, "CHANGE", change.replace("quantity = quantity + %s", floor))
    name = lock_name(shop.sale.pk)
    run = buy_last_unit(shop, lambda: locks["redis"].break_lock(name))
    assert accepts(run, strategy="conditional", units=1, pauses=True) is not is_mutant
    assert Order.objects.count() == 1 + is_mutant


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["holder-paused", "release-before-commit"])
def test_runs_of_scenarios_that_oversell_are_rejected(scenario: str) -> None:
    """Both variants run on real servers; the model of the repaired one judges both."""
    [result] = run_scenarios([scenario])["scenarios"]
    assert (result["verdict"], result["why"]) == ("ok", "")
    broken, repaired = result["halves"]
    strategy = "fenced" if scenario == "holder-paused" else "naive"
    options = {"strategy": strategy, "units": 1, "pauses": strategy == "fenced"}
    assert not accepts(broken["events"], **options)
    assert accepts(repaired["events"], **options)
