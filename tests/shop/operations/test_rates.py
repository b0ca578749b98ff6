"""What processes count is summed in Redis, second by second, without any page view."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from django.test import override_settings

from devservers.faults.waiting import until
from shop.errors import ServiceUnavailable
from shop.operations import rates
from tests.shop.staff import CLOSED_PORT

SELL = """
import django, time
django.setup()
from shop.operations import rates
from shop.platform.metrics import ORDERS
ORDERS.inc(100)
rates.start("seller")
rates.start("seller")
ORDERS.inc(5)
time.sleep(60)
"""


def since(start: float, *name: str) -> int:
    """Return the count of all seconds from Unix time `start` to now."""
    now = int(time.time())
    found = rates.read(now, now - int(start) + 1)
    return sum((counts or {}).get(name, 0) for counts in found)


def test_growth_of_all_processes_is_summed():
    start = time.time()
    sellers = [subprocess.Popen([sys.executable, "-c", SELL]) for _ in range(2)]
    try:
        until(lambda: since(start, "shop_orders_total") >= 10, seconds=60)
        until(lambda: since(start, rates.PROCESS, "seller") >= 6, seconds=60)
        orders, running = since(start, "shop_orders_total"), since(start, rates.PROCESS, "seller")
    finally:
        for seller in sellers:
            seller.kill()
            seller.wait()
    assert orders == 10, "counts from before the start, or counted twice"
    assert running <= 2 * (time.time() - start + 1), "a second start began another thread"


def test_second_without_a_process_is_unknown():
    rates.add(1000, {("orders",): 2})
    rates.add(1000, {("orders",): 3})
    assert rates.read(1001, 3) == [None, {("orders",): 5}, None]


def test_unavailable_redis_is_an_error():
    with override_settings(REDIS_URL=CLOSED_PORT), pytest.raises(ServiceUnavailable):
        rates.read(1001, 3)
