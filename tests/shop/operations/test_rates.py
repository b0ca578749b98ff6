"""What processes count is summed in Redis, second by second, and drawn on the charts."""

import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from django.core.cache import cache
from django.test import override_settings

from devservers.faults.waiting import until
from shop.errors import ServiceUnavailable
from shop.operations import rates
from shop.operations.rates import DELAY, SECONDS, Series, read_last_minute
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
        until(lambda: since(start, "shop_orders_total") >= 10, seconds=120)
        until(lambda: since(start, rates.PROCESS, "seller") >= 6, seconds=120)
        orders, running = since(start, "shop_orders_total"), since(start, rates.PROCESS, "seller")
    finally:
        for seller in sellers:
            seller.kill()
            seller.wait()
    assert orders == 10, "counts from before the start, or counted twice"
    assert running <= 2 * (time.time() - start + 1), "a second start began another thread"


class SetBack:
    """A clock that is set back by an hour after five seconds; after ten, its process ends."""

    def __init__(self, start: int) -> None:
        self.now, self.naps = start + 0.5, 0

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps += 1
        if self.naps > 10:
            raise KeyboardInterrupt
        self.now += seconds - 3600 * (self.naps == 5)


def test_rates_follow_a_clock_that_is_set_back(monkeypatch):
    """Before, they were those of a future that never came, and the process seemed to be gone."""
    clock = SetBack(int(time.time()) - 20_000)
    monkeypatch.setattr(rates, "time", clock)
    with pytest.raises(KeyboardInterrupt):
        rates.publish("seller", {})
    running = [
        (counts or {}).get((rates.PROCESS, "seller"))
        for counts in rates.read(int(clock.now) - 1, 4)
    ]
    assert running == [1] * 4


def test_unavailable_redis_is_an_error():
    with override_settings(REDIS_URL=CLOSED_PORT), pytest.raises(ServiceUnavailable):
        rates.read(1001, 3)


WAIT = "locking_wait_seconds_bucket"


@pytest.fixture
def publish(monkeypatch) -> Callable[[int, rates.Counts], None]:
    """Publish the counts of a second; the clock stands still, so that it becomes no older."""
    cache.clear()  # the same server: no second of another test
    now = time.time()
    monkeypatch.setattr(rates, "time", SimpleNamespace(time=lambda: now))
    return lambda ago, counts: rates.add(int(now) - DELAY - ago, counts)


def test_rates_are_those_of_the_last_seconds(publish):
    for ago in range(1, 5):
        publish(
            ago,
            {
                ("shop_orders_total",): 8,
                ("shop_http_responses_total", "200"): 50,
                ("shop_http_responses_total", "409"): 20,
                ("shop_http_responses_total", "503"): 4,
                ("process", "web"): 2,
                ("process", "consumer"): 1,
            },
        )
    minute = read_last_minute()
    assert (minute.orders.now, minute.orders.peak) == (8, 8)
    assert minute.refusals.now == 24
    assert minute.processes == {"web": 2, "consumer": 1}


def test_seconds_without_a_process_are_unknown_not_zero(publish):
    publish(30, {("process", "web"): 1})
    publish(20, {("process", "web"): 1, ("shop_orders_total",): 3})
    orders = read_last_minute().orders
    assert len(orders.values) == SECONDS
    assert [value for value in orders.values if value is not None] == [0, 3]
    assert orders.now is None
    assert len(orders.lines) == 2


def test_wait_is_the_95th_percentile_within_its_bucket(publish):
    """A second without a wait for the lock of a sale has none."""
    buckets = {"0.001": 50, "0.002": 90, "0.005": 100, "10.0": 100, "+Inf": 100}
    publish(2, {(WAIT, "redis", "sale", le): count for le, count in buckets.items()})
    publish(3, {("process", "web"): 1, (WAIT, "redis", "build", "+Inf"): 3})
    waits = read_last_minute().wait_ms.values
    half_of_2_to_5_ms = pytest.approx(3.5)
    assert [one for one in waits if one is not None] == [half_of_2_to_5_ms]


def test_line_touches_the_top_at_its_peak():
    (line,) = Series([0.0, 4.0, 2.0]).lines
    assert [point.split(",")[1] for point in line.split()[::2]] == ["46.0", "2.0", "24.0"]
