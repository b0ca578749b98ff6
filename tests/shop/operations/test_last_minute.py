"""The series of the charts, from what processes published."""

from __future__ import annotations

import time

import pytest
from django.core.cache import cache

from shop.operations import rates
from shop.operations.rates import DELAY, SECONDS, Series, read_last_minute

WAIT = "locking_wait_seconds_bucket"


@pytest.fixture(autouse=True)
def _empty_redis():
    cache.clear()  # the same server: no second of another test


def publish(ago: int, counts: rates.Counts) -> None:
    rates.add(int(time.time()) - DELAY - ago, counts)


def test_rates_are_those_of_the_last_seconds():
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


def test_seconds_without_a_process_are_unknown_not_zero():
    publish(30, {("process", "web"): 1})
    publish(20, {("process", "web"): 1, ("shop_orders_total",): 3})
    orders = read_last_minute().orders
    assert len(orders.values) == SECONDS
    assert [value for value in orders.values if value is not None] == [0, 3]
    assert orders.now is None
    assert len(orders.lines) == 2


def test_wait_is_the_95th_percentile_within_its_bucket():
    buckets = {"0.001": 50, "0.002": 90, "0.005": 100, "10.0": 100, "+Inf": 100}
    publish(2, {(WAIT, "redis", "sale", le): count for le, count in buckets.items()})
    assert read_last_minute().wait_ms.now == pytest.approx(3.5)  # half of 0.002 to 0.005


def test_no_wait_has_no_percentile():
    publish(2, {("process", "web"): 1, (WAIT, "redis", "build", "+Inf"): 3})
    minute = read_last_minute()
    assert (minute.wait_ms.now, minute.wait_ms.lines) == (None, [])
    assert minute.orders.now == 0


def test_line_touches_the_top_at_its_peak():
    (line,) = Series([0.0, 4.0, 2.0]).lines
    assert [point.split(",")[1] for point in line.split()[::2]] == ["46.0", "2.0", "24.0"]
