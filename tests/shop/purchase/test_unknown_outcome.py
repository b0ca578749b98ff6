"""A COMMIT without a reply: the message reaches the database after the customer got a 503."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.db import connection

from loadtest.faults.proxy import HeldRequest, Proxy
from loadtest.faults.waiting import until
from locking import locks
from shop.models import Order, Sale
from shop.sales.stock_lock import lock_name
from tests.fault_rows import audit_sale, record_outcome
from tests.shop.making import a_customer, a_sale, put_in_force, signed_in
from tests.shop.races.conftest import processes
from tests.shop.races.race_worker import RaceWorker

__all__ = ["processes"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.only("mysql")]

RELEASE_AFTER = "locking.lease.Lease.release_after"
ORDER = b"INSERT INTO `shop_order`"


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(int(connection.settings_dict["PORT"])) as proxy:
        yield proxy


@pytest.fixture
def behind_proxy(
    proxy: Proxy, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RaceWorker]:
    """A process of the shop that gives up after two seconds without a reply."""
    monkeypatch.setenv("DATABASE_TIMEOUT", "2")
    port = connection.settings_dict["PORT"]
    worker = RaceWorker(database_url.replace(f":{port}/", f":{proxy.port}/"))
    yield worker
    worker.close()


def a_form(sale: Sale) -> dict[str, Any]:
    """Return a call that sends the form of a new customer once."""
    cookies = signed_in().cookies
    return {
        "do": "send",
        "path": f"/sales/{sale.slug}/buy/",
        "session": cookies[settings.SESSION_COOKIE_NAME].value,
        "form": {"quantity": 1, "idempotency_key": "k"},
        "patient": False,
    }


def buy_without_reply(
    worker: RaceWorker, proxy: Proxy, sale: Sale, *, is_guarded: bool = True
) -> HeldRequest:
    """Have the worker send a purchase whose transaction stays in the proxy."""
    late = proxy.hold_request(containing=ORDER)
    worker.start(a_form(sale), without=[] if is_guarded else [RELEASE_AFTER])
    assert late.is_held.wait(20)
    return late


def expect_503(worker: RaceWorker) -> None:
    (told,) = worker.results()
    assert told["status"] == 503, told
    assert told["seconds"] < 10
    record_outcome("503")


@pytest.mark.faults(row=26)
@pytest.mark.parametrize("backend", ["redis", "database"])
@pytest.mark.parametrize("is_guarded", [False, True], ids=["control", "guarded"])
def test_row_26_late_commit_sells_no_unit_twice(
    processes, proxy, behind_proxy, backend, is_guarded
) -> None:
    """In the control the lock is released with the 503, and naive sells the last unit twice."""
    put_in_force(backend, "naive")
    sale = a_sale(stock=1)
    late = buy_without_reply(behind_proxy, proxy, sale, is_guarded=is_guarded)
    expect_503(behind_proxy)
    (second,) = processes(1)
    form = {"do": "buy", "sale": sale.pk, "customer": a_customer().pk, "key": "k"}
    assert "order" in second.run(form)[0]
    delivered = late.deliver()
    if is_guarded:
        assert delivered == 0, "the database had not closed the connection"
    else:
        assert delivered > 0
        until(lambda: Order.objects.count() == 2, "the late order")
    audit = audit_sale(sale=sale)
    assert (audit.oversold, audit.ok) == ((0, True) if is_guarded else (1, False))


@pytest.mark.faults(row=26, backend="redis")
def test_row_26_lock_is_kept_while_the_database_is_out_of_reach(
    processes, proxy, behind_proxy
) -> None:
    """Also past its ttl: it is renewed."""
    put_in_force("redis", "naive")
    sale = a_sale(stock=1)
    late = buy_without_reply(behind_proxy, proxy, sale)
    proxy.hold()
    expect_503(behind_proxy)
    (second,) = processes(1)
    second.start(a_form(sale))
    expect_503(second)
    assert locks["redis"].lock(lock_name(sale.pk)).locked()
    proxy.resume()
    form = {"do": "buy", "sale": sale.pk, "customer": a_customer().pk, "key": "k"}
    assert "order" in second.run(form)[0]
    assert late.deliver() == 0
    assert audit_sale(sale=sale).ok
    assert Order.objects.count() == 1


@pytest.mark.faults(row=26, backend="redis")
@pytest.mark.parametrize("strategy", ["fenced", "conditional"])
def test_row_26_other_strategies_release_at_once(processes, proxy, behind_proxy, strategy) -> None:
    """The stock row itself refuses the late write."""
    put_in_force("redis", strategy)
    sale = a_sale(stock=1)
    late = buy_without_reply(behind_proxy, proxy, sale)
    expect_503(behind_proxy)
    (second,) = processes(1)
    form = {"do": "buy", "sale": sale.pk, "customer": a_customer().pk, "key": "k"}
    assert "order" in second.run(form)[0]
    assert late.deliver() > 0
    audit = audit_sale(sale=sale)
    assert (audit.oversold, audit.ok) == (0, True)
    assert Order.objects.count() == 1
