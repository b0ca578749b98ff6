"""Purchases of one process that wait for the lock and are written in one transaction."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import Mock, patch

import pytest
from django.db import connections

from devservers.faults.waiting import until
from inventory.models import StockMovement, WriteStrategy
from locking import locks
from locking.failpoints import armed
from locking.policy.lock import PolicyLock
from shop.administration.audit import audit_sale
from shop.errors import Overloaded, ShopError
from shop.models import Order, Sale, User
from shop.purchase import group_commit
from shop.purchase.place_order import Placed, place_order
from shop.sales.purchase_request import PurchaseRequest
from shop.sales.stock_lock import lock_name
from tests.locking.scripted import ScriptedBackend
from tests.shop.making import a_customer, a_sale, fresh, put_in_force
from tests.shop.purchases import EVERY, LOST, armed_once, buy

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

    def send(form: tuple[User, str]) -> Placed | ShopError | SystemExit:
        customer, key = form
        try:
            return place_order(PurchaseRequest(customer.pk, sale, 1, key, is_first=True))
        except (ShopError, SystemExit) as error:
            return error
        finally:
            connections.close_all()

    def code_of(told: Placed | ShopError | SystemExit) -> str:
        if not isinstance(told, Placed):
            return getattr(told, "code", "") or "exit"
        assert Order.objects.get(pk=told.order.pk).number == told.order.number
        return "replayed" if told.replayed else "ok"

    held = locks["scripted"].lock(name)
    with ThreadPoolExecutor(len(forms)) as pool:
        with held:
            told = [pool.submit(send, form) for form in forms]
            if shared:
                until(lambda: len(group_commit._queues.get(name, ())) == len(forms) - 1)
        return Counter(code_of(each.result(30)) for each in told)


def new_customers(count: int) -> list[tuple[User, str]]:
    return [(a_customer(), "k") for _ in range(count)]


def grants(sale: Sale) -> list[int]:
    """Return the number of orders that each grant wrote."""
    rows = StockMovement.objects.filter(stock=sale.stock_id, reason="reserved")
    return sorted(Counter(rows.values_list("fence_token", flat=True)).values())


@pytest.mark.parametrize(
    ("strategy", "most", "exclusion"),
    [
        *((each, 8, "machines") for each in WriteStrategy.values),
        ("naive", 1, "machines"),
        # Sharing would serialise a shop without a lock between processes, which must oversell.
        ("naive", 8, "process"),
    ],
)
def test_waiting_purchases_share_a_transaction(strategy, most, exclusion, guard, settings) -> None:
    """In the controls each purchase acquires the lock: as many grants as orders."""
    settings.PURCHASES_PER_GRANT, shared = most, (most, exclusion) == (8, "machines")
    guard.capabilities = replace(guard.capabilities, exclusion=exclusion)
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


def test_grant_serves_at_most_purchases_per_grant(settings) -> None:
    settings.PURCHASES_PER_GRANT, settings.MAX_WAITING = 3, 10
    sale = a_sale()
    assert together(sale, new_customers(7)) == {"ok": 7}
    assert grants(sale) == [1, 3, 3]


@EVERY
def test_too_few_units_go_to_the_first_waiters(strategy) -> None:
    put_in_force("scripted", strategy)
    sale, points = a_sale(stock=3), Counter[str]()
    with armed("stock.read", lambda: points.update(["transactions"])):
        assert together(sale, new_customers(6)) == {"ok": 3, "sold_out": 3}
    assert points["transactions"] == 1 + 6, "one grant decides all"
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


def test_one_grant_refuses_all_forms_with_an_outdated_hint() -> None:
    """The customer has bought since the forms were shown. A grant each would take too long."""
    sale, customer, points = a_sale(limit=1), a_customer(), Counter[str]()
    buy(sale, customer=customer)
    with armed("stock.read", lambda: points.update(["transactions"])):
        assert together(sale, [(customer, str(n)) for n in range(6)]) == {"limit": 6}
    assert points["transactions"] == 1 + 6


def test_group_is_found_after_a_lost_commit_reply() -> None:
    """All orders are committed when the connection breaks: no duplicates, and no error."""
    sale = a_sale()
    with armed_once("stock.committed", Mock(side_effect=LOST)):
        assert together(sale, new_customers(4)) == {"replayed": 4}
    assert (Order.objects.count(), audit_sale(sale=sale).ok) == (4, True)


def test_waiters_are_written_after_the_leader_ends() -> None:
    """The exception that ends its thread does not reach the others."""

    def end() -> None:
        raise SystemExit

    sale = a_sale()
    with armed_once("stock.read", end):
        assert together(sale, new_customers(4)) == {"exit": 1, "ok": 3}
    assert grants(sale) == [3]


def test_lost_lease_writes_no_further_purchase(guard) -> None:
    """The group is refused and the lease is lost: the waiters acquire the lock again."""
    sale = a_sale()

    def lose() -> None:
        lease = PolicyLock(lock_name(sale.pk)).lease
        assert lease is not None
        assert guard.break_lock(lease.name)
        lease.mark_lost()
        raise ValueError

    with armed_once("stock.read", lose):
        assert together(sale, new_customers(4)) == {"ok": 4}
    assert grants(sale) == [1, 3]


def test_waiter_times_out_while_the_leader_hangs(settings) -> None:
    sale, is_writing, go_on = a_sale(), threading.Event(), threading.Event()

    def hang() -> None:
        is_writing.set()
        assert go_on.wait(30)

    def lead() -> Placed:
        try:
            return buy(sale, customer=leader)
        finally:
            connections.close_all()

    leader, hasty = a_customer(), a_customer()
    with armed_once("stock.read", hang), ThreadPoolExecutor(1) as pool:
        led = pool.submit(lead)
        assert is_writing.wait(30)
        settings.LOCK_TIMEOUT = 0.05
        with pytest.raises(Overloaded):
            buy(sale, customer=hasty)
        go_on.set()
        assert not led.result(30).replayed
    assert grants(sale) == [1]
