"""Purchases of one process that wait for the lock and are written in one transaction."""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import patch

import pytest
from django.db import connections

from devservers.faults.waiting import until
from inventory.models import StockMovement, WriteStrategy
from locking import locks
from locking.failpoints import armed
from shop.administration.audit import audit_sale
from shop.errors import ShopError
from shop.models import Order, Sale, User
from shop.purchase import group_commit
from shop.purchase.place_order import Placed, place_order
from shop.sales.purchase_request import PurchaseRequest
from shop.sales.stock_lock import lock_name
from tests.locking.scripted import ScriptedBackend
from tests.shop.making import a_customer, a_sale, fresh, put_in_force
from tests.shop.purchases import EVERY, LOST, failing_once

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]


@pytest.fixture(autouse=True)
def _shared(guard: ScriptedBackend, settings) -> Iterator[None]:
    settings.PURCHASES_PER_GRANT = 8
    reach = replace(guard.capabilities, exclusion="machines")  # others are not shared
    with patch.object(guard, "capabilities", reach):
        yield
    assert not group_commit._queues, "a thread is still registered as leader"


def together(sale: Sale, forms: Sequence[tuple[User, str]], shared: bool = True) -> Counter[str]:
    """Count the outcomes of purchases that all wait for the lock when it is released."""
    sale, name = fresh(sale), lock_name(sale.pk)

    def send(form: tuple[User, str]) -> Placed | ShopError:
        customer, key = form
        try:
            return place_order(PurchaseRequest(customer.pk, sale, 1, key, is_first=True))
        except ShopError as error:
            return error
        finally:
            connections.close_all()

    def code_of(told: Placed | ShopError) -> str:
        if isinstance(told, ShopError):
            return told.code
        assert Order.objects.get(pk=told.order.pk).number == told.order.number
        return "replayed" if told.replayed else "ok"

    held = locks["scripted"].lock(name)
    with ThreadPoolExecutor(len(forms)) as pool:
        with held:
            told = [pool.submit(send, form) for form in forms]
            if shared:
                until(lambda: len(group_commit._queues.get(name, ())) == len(forms) - 1)
        return Counter(code_of(each.result(10)) for each in told)


def new_customers(count: int) -> list[tuple[User, str]]:
    return [(a_customer(), "k") for _ in range(count)]


def grants(sale: Sale) -> list[int]:
    """Return the number of orders that each grant wrote."""
    rows = StockMovement.objects.filter(stock=sale.stock_id, reason="reserved")
    return sorted(Counter(rows.values_list("fence_token", flat=True)).values())


@pytest.mark.parametrize(
    ("strategy", "shared"), [*((each, True) for each in WriteStrategy.values), ("naive", False)]
)
def test_waiting_purchases_share_a_transaction(strategy, shared, settings) -> None:
    """In the control each purchase acquires the lock: as many grants as orders."""
    settings.PURCHASES_PER_GRANT = 8 if shared else 1
    put_in_force("scripted", strategy)
    sale, points = a_sale(stock=7), Counter[str]()
    with (
        armed("stock.read", lambda: points.update(["check"])),
        armed("stock.committed", lambda: points.update(["committed"])),
    ):
        assert together(sale, new_customers(6), shared) == {"ok": 6}
    writes = 1 if shared else 6
    assert points == {"check": writes, "committed": writes}, "once for each transaction"
    assert grants(sale) == ([6] if shared else [1] * 6)
    audit = audit_sale(sale=sale)
    assert (audit.ok, audit.available) == (True, 1)


@EVERY
def test_too_few_units_go_to_the_first_waiters(strategy) -> None:
    put_in_force("scripted", strategy)
    sale = a_sale(stock=3)
    assert together(sale, new_customers(6)) == {"ok": 3, "sold_out": 3}
    audit = audit_sale(sale=sale)
    assert (audit.ok, audit.available, audit.held, audit.stale_writes_refused) == (True, 0, 3, 0)


@pytest.mark.parametrize(
    ("limit", "keys", "told"),
    [
        (5, ("a", "a"), {"ok": 4, "replayed": 1}),
        (5, ("a", "b"), {"ok": 5}),
        (1, ("a", "b"), {"ok": 4, "limit": 1}),
    ],
)
def test_two_forms_of_one_customer_in_one_group(limit, keys, told) -> None:
    sale, customer = a_sale(limit=limit), a_customer()
    forms = [*new_customers(2), *((customer, key) for key in keys), *new_customers(1)]
    assert together(sale, forms) == told
    assert audit_sale(sale=sale).ok
    assert Order.objects.filter(customer=customer).count() == told["ok"] - 3


def test_group_is_found_after_a_lost_commit_reply() -> None:
    """All orders are committed when the connection breaks: no duplicates, and no error."""
    sale = a_sale()
    with failing_once(LOST):
        assert together(sale, new_customers(4)) == {"replayed": 4}
    assert (Order.objects.count(), audit_sale(sale=sale).ok) == (4, True)
