"""A COMMIT without a reply: the message reaches the database after the customer got a 503."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from devservers.faults.waiting import until
from shop.models import Order
from tests.devservers.faults.interception import HeldRequest, InterceptingProxy
from tests.fault_rows import audit_sale, record_outcome
from tests.shop.making import a_customer, a_sale, fresh, put_in_force
from tests.shop.purchases import buy
from tests.shop.races.conftest import processes
from tests.shop.races.race_worker import RaceWorker, a_form, form_of

__all__ = ["processes"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.only("mysql", "postgresql")]

BOUND = 20.0
"""Seconds, on a loaded machine, within which a customer must have a response."""
STRATEGIES = pytest.mark.parametrize("strategy", ["naive", "fenced", "conditional"])


@pytest.fixture(scope="module")
def proxy() -> Iterator[InterceptingProxy]:
    with InterceptingProxy(int(connection.settings_dict["PORT"])) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def behind_proxy(proxy: InterceptingProxy, test_database_url: str) -> Iterator[RaceWorker]:
    """A process of the shop that gives up after two seconds without a reply."""
    port = connection.settings_dict["PORT"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATABASE_TIMEOUT", "2")
        worker = RaceWorker(test_database_url.replace(f":{port}/", f":{proxy.port}/"))
    yield worker
    worker.close()


def without_reply(
    worker: RaceWorker, proxy: InterceptingProxy, call: dict[str, Any]
) -> HeldRequest:
    """Have the worker write stock in a transaction that stays in the proxy."""
    table = connection.ops.quote_name("inventory_stockmovement")
    late = proxy.hold_request(containing=f"INSERT INTO {table}".encode())

    def is_held() -> bool:
        worker.start(dict(call))
        until(lambda: late.is_held.is_set() or not worker.is_silent(0), "the transaction", 60)
        if not late.is_held.is_set():
            worker.results()  # it was refused: the circuit breaker is open, or it was too late
        return late.is_held.is_set()

    until(is_held, "a transaction", 60)
    return late


@STRATEGIES
@pytest.mark.faults(row=26, backend="redis")
def test_row_26_late_commit_sells_no_unit_twice(processes, proxy, behind_proxy, strategy) -> None:
    """The lock is released with the 503. Naive is the control: it sells the last unit twice."""
    put_in_force("redis", strategy)
    sale = a_sale(stock=1)
    form = {**form_of(sale, a_customer()), "patient": False}
    late = without_reply(behind_proxy, proxy, form)
    (told,) = behind_proxy.results()
    assert (told["status"], told["seconds"] < BOUND) == (503, True), told
    record_outcome("503")
    (second,) = processes(1)
    assert "order" in second.run(a_form(sale))[0]
    assert late.deliver() > 0, "the connection was closed"
    is_naive = strategy == "naive"
    until(lambda: Order.objects.count() == 1 + is_naive, "the late order")
    audit = audit_sale(sale=sale)
    assert (audit.oversold, audit.ok) == ((1, False) if is_naive else (0, True))


@STRATEGIES
@pytest.mark.faults(row=26, backend="redis")
@pytest.mark.parametrize("act", ["cancel", "restock"])
def test_row_26_late_return_of_units_is_not_overwritten(
    processes, proxy, behind_proxy, act, strategy
) -> None:
    """It arrives between the read and the write of a purchase; naive overwrites it."""
    put_in_force("redis", strategy)
    sale = a_sale(stock=5)
    order = buy(sale).order
    calls = {
        "cancel": {"do": "cancel", "order": order.number},
        "restock": {"do": "restock", "sale": sale.pk, "quantity": 2},
    }
    late = without_reply(behind_proxy, proxy, calls[act])
    assert behind_proxy.results()[0]["error"] == "OutcomeUnknown"
    (second,) = processes(1)
    second.run_until("stock.read", a_form(sale))
    assert late.deliver() > 0, "the connection was closed"
    until(lambda: fresh(sale).stock.quantity > 4 or strategy == "fenced", "the late units")
    assert "order" in second.finish()[0]
    assert audit_sale(sale=sale).ok is (strategy != "naive")
