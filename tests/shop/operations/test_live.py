"""The operations page: what it shows, and how long it waits."""

import threading
import time
from html import unescape

import pytest
from django.conf import settings as django_settings
from django.test.utils import override_settings
from prometheus_client import REGISTRY

from devservers import Redis
from devservers.faults.waiting import until
from inventory.models import Product, Stock
from locking import locks
from locking.models import LockPolicy
from locking.names import ReservedName
from shop.administration import alerts
from shop.models import Sale, User
from shop.operations import live
from shop.operations.live import get_live_state
from shop.settings.redis_retry import RetryOnce
from tests.shop.making import a_customer, a_sale, put_in_force, signed_in
from tests.shop.purchases import buy
from tests.shop.staff import few_backends, holder, seen_by_threads

__all__ = ["few_backends", "holder"]
pytestmark = [pytest.mark.django_db, pytest.mark.stores]


def test_sales_that_no_customer_finds_are_not_counted():
    """The sale of a load test is not listed; another one's product may be hidden."""
    a_sale()
    Sale.objects.filter(pk=a_sale().pk).update(is_listed=False)
    Product.objects.filter(pk=a_sale().product_id).update(is_listed=False)
    assert get_live_state().open_sales == 1


@seen_by_threads
@pytest.mark.parametrize("alias", ["redis", "database"])
def test_holder_and_lease_of_a_lock_are_shown(amy, holder, alias):
    put_in_force(alias, epoch=7)
    sale = a_sale()
    go = holder(f"sale:{sale.pk}")
    (row,) = (row for row in get_live_state().rows if row.sale == sale.slug)
    assert (row.backend, row.epoch, row.is_stale, row.held.count) == (alias, 7, False, 1)
    assert 0 < row.held.expires_in <= locks[alias].ttl
    page = amy.get("/ops/live/").text
    assert sale.slug in page
    assert row.held.owner in page
    go.set()
    until(lambda: live.invalidate() or not get_live_state().rows)


@seen_by_threads
def test_server_of_the_active_lock_that_is_down_is_shown_and_counted(amy, monkeypatch):
    backend = locks["redis"].backend
    monkeypatch.setattr(backend, "nodes_down", lambda: ["10.0.0.3:6379"])
    assert "stopped responding: 10.0.0.3:6379." in amy.get("/ops/live/").text
    alerts.update_metrics()
    assert REGISTRY.get_sample_value("shop_lock_nodes_down") == 1


@seen_by_threads
def test_lock_released_while_the_page_is_read_is_not_stale(holder, monkeypatch):
    """The next purchase raises the fence right after the holders were read."""
    sale = a_sale()
    go = holder(f"sale:{sale.pk}")
    backend, customer = locks["redis"], a_customer()
    list_holders = backend.inspect

    def list_then_sell():
        held = list_holders()
        go.set()
        if not buy(sale, customer=customer).replayed:
            sold.append(held)
        return held

    sold = []
    monkeypatch.setattr(backend, "inspect", list_then_sell)
    rows = get_live_state().rows
    assert f"sale:{sale.pk}" in [held.name for held in sold[0]], "it was held at first"
    assert [row.is_stale for row in rows if row.is_stale] == []


@seen_by_threads
def test_only_policy_locks_can_be_stale(holder):
    put_in_force("database")
    for name in map(ReservedName, ("build:home", "idempotency:x", "sale:1")):
        holder(name, "redis")
    stale = {row.held.name: row.is_stale for row in get_live_state().rows}
    assert stale == {"build:home": False, "idempotency:x": False, "sale:1": True}
    LockPolicy.objects.update(next_backend="redis")  # during a switch, both backends grant locks
    live.invalidate()
    assert not any(row.is_stale for row in get_live_state().rows)


@seen_by_threads
def test_holder_older_than_the_fence_is_stale(holder):
    sale = a_sale()
    holder(f"sale:{sale.pk}")
    Stock.objects.filter(pk=sale.stock_id).update(fence_epoch=2)
    assert [row.is_stale for row in get_live_state().rows] == [True]


def test_page_does_not_wait_for_a_hanging_backend(amy, monkeypatch):
    """The page names the backend that did not respond within the probe's limit."""
    hole = threading.Event()
    monkeypatch.setattr(locks["database"], "probe", lambda: hole.wait(30))
    began = time.monotonic()
    page = amy.get("/ops/").text
    took = time.monotonic() - began
    hole.set()
    assert "no reply in 1.5 s" in page
    assert "DOWN" in page
    assert took < 20, "loaded machines included; 1.6 s on a quiet one"


def test_page_does_not_wait_for_a_stopped_redis():
    """Sessions, shared pages and alerts all ask it; the page waits a few seconds in all."""
    with Redis() as server, _all_on(server):
        user = User.objects.create_superuser("amy")
        client = signed_in(user)
        assert client.get("/ops/").status_code == 200
        live.invalidate()
        server.pause()
        try:
            began = time.monotonic()
            page = client.get("/ops/")
            took = time.monotonic() - began
        finally:
            server.resume()
    assert page.status_code == 200
    assert "DOWN" in page.text
    assert took < 20, "36 s when every read waited; 1.3 s since one finds out for all"


def _all_on(server: Redis) -> override_settings:
    own = {"LOCATION": server.url}
    caches = {
        name: {**conf, **own, "OPTIONS": {**conf["OPTIONS"], "retry": RetryOnce(server.url)}}
        for name, conf in django_settings.CACHES.items()
    }
    urls = dict.fromkeys(("REDIS_URL", "QUEUE_REDIS_URL", "CACHE_URL"), server.url)
    return override_settings(CACHES=caches, **urls)


def test_no_lock_has_no_holders(amy):
    """Its holders were “unknown”."""
    put_in_force("none")
    page = amy.get("/ops/").text
    assert "No lock is held right now." in page
    assert "Locks whose holders can't be listed: process." in unescape(page)


def test_audit_is_shown(amy):
    assert "Not audited yet" in amy.get("/ops/").text
    sound, wrong = a_sale(stock=7), a_sale(stock=7)
    Stock.objects.filter(pk=wrong.stock_id).update(quantity=6)
    assert amy.post("/ops/audit/")["Location"] == "/ops/#stock-audit"
    page = amy.get("/ops/").text
    for text in (sound.slug, wrong.slug, "WRONG", "the row says 6"):
        assert text in page
