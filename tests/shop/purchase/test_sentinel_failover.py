"""A failover during a sale whose lock is on a Redis behind Sentinels (LOCK_REDIS_URL)."""

import time

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from inventory.models import Stock
from locking import locks
from shop.errors import Overloaded
from tests.devservers.redis_groups import SentinelRedis
from tests.fault_rows import SLACK, audit_sale
from tests.shop.making import a_customer, a_sale, put_in_force
from tests.shop.purchases import buy

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores, pytest.mark.long]


@pytest.mark.faults(row=4, backend="redis-sentinel")
@pytest.mark.parametrize("strategy", ["fenced", "conditional"])
def test_purchases_resume_within_a_second_of_a_failover(strategy: str, settings) -> None:
    with SentinelRedis() as servers:
        redis = {**settings.LOCKS["redis"], "LOCATION": servers.url}
        settings.LOCKS = {**settings.LOCKS, "redis": redis}
        put_in_force("redis", strategy)
        sale = a_sale(stock=40, limit=1)
        refused, resumed_after = 0, 0.0
        fences: list[tuple[int, int]] = []
        for number in range(40):
            if number == 20:
                servers.master.kill()
            customer, promoted = a_customer(), 0.0
            deadline = time.monotonic() + WAIT_TIMEOUT
            while True:
                try:
                    buy(sale, customer=customer, key=f"k{number}")
                    break
                except Overloaded:
                    assert time.monotonic() < deadline
                    refused += 1
                if not promoted and servers.names(servers.replica):
                    promoted = time.monotonic()
            if promoted:
                resumed_after = time.monotonic() - promoted
            stock = Stock.objects.get(sale=sale)
            fences.append((stock.fence_epoch, stock.fence_token))
        locks.close()
        assert refused, "no purchase met the failover"
        assert resumed_after < 1 + SLACK
        assert fences == sorted(set(fences))
        until(lambda: servers.names(servers.replica), "the promotion")
    assert Stock.objects.get(sale=sale).quantity == 0
    assert audit_sale(sale=sale).ok
