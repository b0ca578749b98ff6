"""A COMMIT without a reply: the message reaches the database after the customer got a 503."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import DEFAULT, patch

import pytest
from django.conf import settings
from django.db import connection

from devservers.faults.waiting import until
from inventory import stock
from inventory.exceptions import OutcomeUnknown
from locking import Lease, locks
from shop.models import Order, Sale
from shop.reservations import consumer
from shop.sales.stock_lock import lock_name
from tests.devservers.faults.interception import HeldRequest, InterceptingProxy
from tests.fault_rows import audit_sale, record_outcome
from tests.shop.making import a_customer, a_sale, fresh, put_in_force, signed_in
from tests.shop.purchases import buy
from tests.shop.queued import a_queued_sale, ask, status
from tests.shop.races.conftest import processes
from tests.shop.races.race_worker import RaceWorker

__all__ = ["processes"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.only("mysql", "postgresql")]

BOUND = 20.0
"""Seconds, on a loaded machine, within which a customer must have a response."""
RELEASE_AFTER = "locking.lease.Lease.release_after"


@pytest.fixture
def proxy() -> Iterator[InterceptingProxy]:
    with InterceptingProxy(int(connection.settings_dict["PORT"])) as proxy:
        yield proxy


@pytest.fixture
def behind_proxy(
    proxy: InterceptingProxy, database_url: str, monkeypatch: pytest.MonkeyPatch
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


def a_purchase(sale: Sale) -> dict[str, Any]:
    """Return a call that sends the form of a new customer until the shop is not overloaded."""
    return {"do": "buy", "sale": sale.pk, "customer": a_customer().pk, "key": "k"}


def without_reply(
    worker: RaceWorker, proxy: InterceptingProxy, call: dict[str, Any], *, is_guarded: bool = True
) -> HeldRequest:
    """Have the worker write stock in a transaction that stays in the proxy."""
    table = connection.ops.quote_name("inventory_stockmovement")
    late = proxy.hold_request(containing=f"INSERT INTO {table}".encode())
    for _ in range(10):
        worker.start(dict(call), without=[] if is_guarded else [RELEASE_AFTER])
        until(lambda: late.is_held.is_set() or not worker.is_silent(0), "the transaction", 60)
        if late.is_held.is_set():
            return late
        worker.results()  # it was refused: on a loaded machine, its first request may be too late
    raise AssertionError("no transaction was sent")


def expect_503(worker: RaceWorker) -> None:
    (told,) = worker.results()
    assert told["status"] == 503, told
    assert told["seconds"] < BOUND
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
    late = without_reply(behind_proxy, proxy, a_form(sale), is_guarded=is_guarded)
    expect_503(behind_proxy)
    (second,) = processes(1)
    assert "order" in second.run(a_purchase(sale))[0]
    delivered = late.deliver()
    if is_guarded:
        assert delivered == 0, "the database had not closed the connection"
    else:
        assert delivered > 0
        until(lambda: Order.objects.count() == 2, "the late order")
    audit = audit_sale(sale=sale)
    assert (audit.oversold, audit.ok) == ((0, True) if is_guarded else (1, False))


@pytest.mark.faults(row=26, backend="redis")
@pytest.mark.parametrize("is_guarded", [False, True], ids=["control", "guarded"])
@pytest.mark.parametrize("act", ["cancel", "restock"])
def test_row_26_late_return_of_units_is_not_overwritten(
    processes, proxy, behind_proxy, act, is_guarded
) -> None:
    """In the control it arrives between a purchase's read and write; naive overwrites it."""
    put_in_force("redis", "naive")
    sale = a_sale(stock=5)
    order = buy(sale).order
    calls = {
        "cancel": {"do": "cancel", "order": order.number},
        "restock": {"do": "restock", "sale": sale.pk, "quantity": 2},
    }
    late = without_reply(behind_proxy, proxy, calls[act], is_guarded=is_guarded)
    assert behind_proxy.results()[0]["error"] == "OutcomeUnknown"
    (second,) = processes(1)
    second.run_until("stock.read", a_purchase(sale))
    delivered = late.deliver()
    if not is_guarded:
        until(lambda: fresh(sale).stock.quantity > 4, "the late units")
    assert "order" in second.finish()[0]
    assert fresh(sale).stock.quantity == 3
    assert (delivered > 0, audit_sale(sale=sale).ok) == (not is_guarded, is_guarded)


@pytest.mark.parametrize(("strategy", "is_kept"), [("naive", True), ("fenced", False)])
def test_order_writer_keeps_the_lock(strategy, is_kept) -> None:
    put_in_force("process", strategy)
    queued = ask(a_queued_sale(stock=1))
    fault = patch.object(stock, "commit", wraps=stock.commit, side_effect=[OutcomeUnknown, DEFAULT])
    with fault, patch.object(Lease, "release_after") as release_after:
        consumer.Consumer(threading.Event()).round()
    assert status(queued) == "won"
    assert release_after.called is is_kept


@pytest.mark.faults(row=26, backend="redis")
def test_row_26_lock_is_kept_while_the_database_is_out_of_reach(
    processes, proxy, behind_proxy
) -> None:
    """Also past its ttl: it is renewed."""
    put_in_force("redis", "naive")
    sale = a_sale(stock=1)
    late = without_reply(behind_proxy, proxy, a_form(sale))
    proxy.hold()
    expect_503(behind_proxy)
    (second,) = processes(1)
    second.start(a_form(sale))
    expect_503(second)
    assert locks["redis"].lock(lock_name(sale.pk)).locked()
    proxy.resume()
    assert "order" in second.run(a_purchase(sale))[0]
    assert late.deliver() == 0
    assert audit_sale(sale=sale).ok
    assert Order.objects.count() == 1


@pytest.mark.faults(row=26, backend="redis")
@pytest.mark.parametrize("strategy", ["fenced", "conditional"])
def test_row_26_other_strategies_release_at_once(processes, proxy, behind_proxy, strategy) -> None:
    """The stock row itself refuses the late write."""
    put_in_force("redis", strategy)
    sale = a_sale(stock=1)
    late = without_reply(behind_proxy, proxy, a_form(sale))
    expect_503(behind_proxy)
    (second,) = processes(1)
    assert "order" in second.run(a_purchase(sale))[0]
    assert late.deliver() > 0
    audit = audit_sale(sale=sale)
    assert (audit.oversold, audit.ok) == (0, True)
    assert Order.objects.count() == 1
