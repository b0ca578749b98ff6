"""The alerts: inconsistent stock, and what a web process measures."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from django.db import connection
from prometheus_client import REGISTRY
from redis import Redis as Client
from redis.exceptions import RedisError

from devservers import MariaDb, Redis
from devservers.base import HOST
from devservers.faults.waiting import until
from inventory.models import Stock
from shop import tasks
from shop.administration import alerts
from shop.models import User
from shop.reservations import store
from tests.shop.making import a_sale, fresh, signed_in
from tests.shop.queued import a_queued_sale, ask, consume

pytestmark = [pytest.mark.django_db]


@pytest.fixture
def redis(settings) -> Iterator[Redis]:
    """A Redis with a small memory limit."""
    limit = ("--maxmemory", "8mb", "--maxmemory-policy", "noeviction")
    with Redis(config=limit) as server:
        settings.REDIS_URL = settings.QUEUE_REDIS_URL = server.url
        yield server


@pytest.fixture
def scrape(client) -> Callable[[str], float]:
    """Return the value of a gauge on /metrics."""

    def value(name: str) -> float:
        found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", client.get("/metrics").text, re.MULTILINE)
        assert found
        return float(found[1])

    return value


@pytest.mark.django_db(transaction=True)
def test_unwritten_reservation_is_measured_without_a_worker(in_force, scrape) -> None:
    """Before, only the audit of a Celery worker set the gauge, which stayed at 0 without one."""
    waiting = "shop_oldest_reservation_seconds"
    a_sale()
    sale, empty = a_queued_sale(), a_queued_sale()
    assert scrape(waiting) == 0
    ask(sale)
    ask(empty)
    ask(sale)
    first = next(store.entries(sale=fresh(sale)))
    until(lambda: scrape(waiting) > 1, "the gauge to rise")
    earliest = time.time() - first.reserved_at
    assert earliest - 1 < scrape(waiting) < time.time() - first.reserved_at + 1
    while consume():
        pass
    assert scrape(waiting) == 0


def test_memory_of_the_redis_that_does_not_evict(in_force, redis, scrape) -> None:
    """The gauge stays while Redis is unavailable."""
    assert 0 < scrape("shop_redis_memory_ratio") < 0.5
    with Client.from_url(redis.url) as client:
        while client.info("memory")["used_memory"] < 0.85 * 8 * 2**20:
            client.rpush("messages", "x" * 10_000)
    assert 0.8 < (full := scrape("shop_redis_memory_ratio")) <= 1
    redis.stop()
    began = time.monotonic()
    assert scrape("shop_redis_memory_ratio") == full
    assert time.monotonic() - began < 10, "less than Prometheus's usual timeout"


def test_clock_of_the_database_is_known_in_an_hour_that_comes_twice(monkeypatch) -> None:
    """Before, the alert fired for an hour when daylight saving time of the server ended."""
    driver = pytest.importorskip("MySQLdb")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    with (
        MariaDb() as server,
        closing(driver.connect(host=HOST, port=server.port, user="root")) as database,
        closing(database.cursor()) as cursor,
    ):
        for hour in (0, 1):
            at = datetime(2026, 10, 25, hour, 30, tzinfo=UTC).timestamp()
            cursor.execute(f"SET timestamp = {at}")
            cursor.execute(alerts.CLOCK_NOW["mysql"])
            assert float(cursor.fetchone()[0]) == at


def test_clock_difference_is_that_to_the_database(scrape) -> None:
    difference = "shop_clock_difference_seconds"
    assert abs(scrape(difference)) < 1
    if connection.vendor == "mysql":
        with connection.cursor() as cursor:
            cursor.execute("SET timestamp = UNIX_TIMESTAMP() + 100")
            assert scrape(difference) == pytest.approx(100, abs=5)
            cursor.execute("SET timestamp = DEFAULT")
    assert REGISTRY.get_sample_value(difference) is not None


@pytest.mark.django_db(transaction=True)
def test_inconsistent_sale_alerts_until_it_is_repaired(in_force, scrape, caplog, monkeypatch):
    gauge = "shop_inconsistent_sales"
    sound, sale = a_sale(stock=5), a_sale(stock=5)
    staff, customer = signed_in(User.objects.create(username="amy", is_staff=True)), signed_in()
    Stock.objects.filter(pk=sale.stock_id).update(quantity=4)
    assert tasks.audit_stock.apply().get() == f"2 audited, 1 inconsistent: {sale.slug}"
    assert f"Stock of sale {sale.slug} is inconsistent" in caplog.text
    assert scrape(gauge) == 1
    with monkeypatch.context() as silent:
        silent.setattr(alerts, "cache", SimpleNamespace(get=Mock(side_effect=RedisError)))
        assert scrape(gauge) == 1
    assert f"{sale.slug} (5 initial ≠ 4 available" in staff.get("/").text
    assert sound.slug not in str(alerts.inconsistent_sales())
    assert "Stock mismatch" not in customer.get("/").text

    Stock.objects.filter(pk=sale.stock_id).update(quantity=5)
    tasks.audit_stock.apply()
    assert alerts.inconsistent_sales() == {}
    assert scrape(gauge) == 0
    assert "Stock mismatch" not in staff.get("/").text
