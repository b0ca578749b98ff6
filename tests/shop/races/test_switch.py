"""The backend switched while real processes buy (row 25 of the fault suite).

The scenarios "forced-switch" and "switch-under-load" switch it while one holder has read the stock.
"""

import pytest

from devservers import Redis
from devservers.faults.waiting import until
from inventory.models import StockMovement
from locking import locks, policy
from locking.models import LockPolicyChange
from shop.models import Sale
from tests.fault_rows import audit_sale
from tests.shop.making import a_sale, put_in_force
from tests.shop.races.race_worker import RaceWorker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]


def start_a_crowd(crowd: list[RaceWorker]) -> Sale:
    """Buy in two threads of each process until stopped."""
    sale = a_sale(stock=30_000)
    for process in crowd:
        process.start(*[{"do": "buy_until_told", "sale": sale.pk}] * 2)
    return sale


def end(crowd: list[RaceWorker], sale: Sale) -> None:
    """Expect an order for each success, and a consistent sale."""
    results = [result for process in crowd for result in process.finish()]
    assert not [result for result in results if "error" in result]
    audit = audit_sale(sale=sale)
    assert audit.ok, audit.breaches
    assert audit.held == sum(result["bought"] for result in results)


def sold_under(epoch: int) -> int:
    return StockMovement.objects.filter(reason="reserved", fence_epoch=epoch).count()


@pytest.mark.faults(row=25, backend="redis, database", fired="switched twice")
@pytest.mark.parametrize(("strategy", "force"), [("naive", False), ("fenced", True)])
def test_switch_there_and_back_under_load(processes, strategy, force) -> None:
    put_in_force("redis", strategy)
    crowd = processes(4)
    sale = start_a_crowd(crowd)
    for epoch, target in enumerate(("database", "redis"), start=1):
        until(lambda epoch=epoch: sold_under(epoch) >= 15, f"sales under epoch {epoch}")
        policy.switch(backend=target, force=force)
    until(lambda: sold_under(3) >= 15, "sales under the last epoch")
    end(crowd, sale)


@pytest.mark.faults(row=25, backend="redis to database", fired="switched by force")
def test_forced_switch_from_a_dead_backend_under_load(database_url) -> None:
    """Redis is killed during a sale; purchases are overloaded until a forced switch."""
    put_in_force("redis", "fenced")
    with Redis() as redis:
        crowd = [RaceWorker(database_url, redis.url) for _ in range(2)]
        try:
            sale = start_a_crowd(crowd)
            until(lambda: sold_under(1) >= 10, "sales on the old backend")
            redis.kill()
            policy.switch(backend="database", force=True)
            until(lambda: sold_under(2) >= 10, "sales on the new backend")
            end(crowd, sale)
        finally:
            for process in crowd:
                process.close()
    assert LockPolicyChange.objects.get().forced
    assert not [held for held in locks["database"].inspect() if held.name == f"sale:{sale.pk}"]
