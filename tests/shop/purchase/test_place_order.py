"""Direct purchases: outcomes, writes and refusals."""

from __future__ import annotations

from datetime import timedelta
from unittest.mock import patch

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inventory.models import Stock, StockMovement
from locking import policy
from shop.administration.audit import audit_sale
from shop.errors import BadInput, KeyReused, LimitReached, NotOpen, SoldOut
from shop.models import CustomerQuota, Order, Sale
from shop.orders.service import cancel_order
from shop.purchase.place_order import place_order
from shop.sales.purchase_request import PurchaseRequest
from shop.sales.stock_lock import lock_name
from tests.shop.making import a_customer, a_sale, fresh, put_in_force
from tests.shop.purchases import EVERY, buy, nothing_changed

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("guard")]


@EVERY
@pytest.mark.parametrize("backend", ["scripted", "process", "none"])
def test_purchase_writes_order_stock_and_ledger(backend, strategy) -> None:
    put_in_force(backend, strategy)
    sale, customer = a_sale(stock=5), a_customer()
    placed = buy(sale, customer=customer, quantity=2)
    order = placed.order
    assert not placed.replayed
    assert (order.quantity, order.unit_price, order.status) == (2, sale.price, "pending")
    left = order.pay_by - timezone.now()
    assert timedelta(seconds=800) < left < timedelta(seconds=901)
    assert fresh(sale).stock.quantity == 3
    assert CustomerQuota.objects.get(customer=customer, sale=sale).taken == 2
    audit = audit_sale(sale=sale)
    assert (audit.ok, audit.initial, audit.available, audit.held, audit.sold) == (True, 5, 3, 2, 0)


def test_ledger_and_stock_row_carry_the_fence() -> None:
    put_in_force("scripted", epoch=4)
    sale = a_sale()
    buy(sale)
    line = StockMovement.objects.get(reason="reserved")
    token = line.fence_token
    assert (line.fence_epoch, token > 0) == (4, True)
    row = Stock.objects.get(pk=sale.stock_id)
    assert (row.fence_epoch, row.fence_token) == (4, token)


def test_order_is_committed_before_the_lock_is_released(guard) -> None:
    """F8 from inside; the race with an early release is in races/."""
    sale, seen = a_sale(), []

    def at_release() -> None:
        seen.append((Order.objects.count(), len(connection.savepoint_ids), guard.inspect()))

    before = len(connection.savepoint_ids)
    guard.then("release", at_release)
    buy(sale)
    orders, depth, held = seen[0]
    assert (orders, depth) == (1, before)
    assert [lock.name for lock in held] == [lock_name(sale.pk)]


@EVERY
def test_purchase_needs_at_most_eight_queries(strategy) -> None:
    put_in_force("scripted", strategy)
    sale, customer = fresh(a_sale()), a_customer()
    policy.invalidate()  # the dearest case: the policy has to be read, too
    for key in ("first", "second"):
        with CaptureQueriesContext(connection) as queries:
            place_order(PurchaseRequest(customer_id=customer.pk, sale=sale, quantity=1, key=key))
        told = [query["sql"] for query in queries if not is_bracket(query["sql"])]
        assert len(told) <= 8, "\n".join(told)


def is_bracket(sql: str) -> bool:
    return sql.startswith(("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE SAVEPOINT"))


def test_replay_returns_the_order_and_takes_no_unit() -> None:
    sale, customer = a_sale(limit=5), a_customer()
    first = buy(sale, customer=customer, quantity=2)
    sale = fresh(sale)
    again = buy(sale, customer=customer, quantity=2)
    assert again.replayed
    assert again.order == first.order
    assert nothing_changed(sale, orders=1)


def test_replay_succeeds_after_the_sale_is_over() -> None:
    sale, customer = a_sale(stock=1, limit=1), a_customer()
    order = buy(sale, customer=customer).order
    Sale.objects.update(closes_at=timezone.now() - timedelta(seconds=1))
    assert buy(sale, customer=customer).order == order
    cancel_order(order=order)
    assert buy(sale, customer=customer).order.status == Order.Status.CANCELLED


def test_replay_needs_no_lock(guard) -> None:
    sale, customer = a_sale(), a_customer()
    buy(sale, customer=customer)
    asked = len(guard.calls)
    buy(sale, customer=customer)
    assert len(guard.calls) == asked


def test_key_with_another_quantity_is_refused() -> None:
    sale, customer = a_sale(), a_customer()
    buy(sale, customer=customer, quantity=2)
    with pytest.raises(KeyReused):
        buy(sale, customer=customer)


def test_keys_are_compared_exactly() -> None:
    """Databases disagree on capitals, accents and trailing spaces; the shop does not."""
    sale, customer = a_sale(stock=10, limit=10), a_customer()
    keys = ["key", "KEY", "kéy", "key ", "key\t", "k" * 255]
    orders = {buy(sale, customer=customer, key=key).order.pk for key in keys}
    assert len(orders) == len(keys)


@EVERY
def test_first_purchase_reads_no_earlier_orders(strategy) -> None:
    put_in_force("scripted", strategy)
    sale = a_sale()
    with patch("shop.purchase.place_order._earlier_orders", side_effect=AssertionError):
        assert not buy(sale, is_first=True).replayed
    assert audit_sale(sale=sale).ok


@EVERY
def test_wrong_hint_is_first_is_corrected(strategy) -> None:
    """The hint saves a query; the unique keys detect that it is wrong."""
    put_in_force("scripted", strategy)
    sale, customer = a_sale(stock=5, limit=2), a_customer()
    first = buy(sale, customer=customer).order
    assert buy(sale, customer=customer, is_first=True).order == first
    with pytest.raises(KeyReused):
        buy(sale, customer=customer, quantity=2, is_first=True)
    with pytest.raises(LimitReached):
        buy(sale, customer=customer, key="l", quantity=2, is_first=True)
    buy(sale, customer=customer, key="l", is_first=True)
    with pytest.raises(LimitReached):
        buy(sale, customer=customer, key="m", is_first=True)
    with pytest.raises(LimitReached):
        buy(sale, quantity=3, is_first=True)
    assert CustomerQuota.objects.get(customer=customer, sale=sale).taken == 2
    assert audit_sale(sale=sale).ok


@EVERY
def test_replay_of_the_last_unit_with_a_wrong_hint(strategy) -> None:
    """The cached sale has one unit left; the first request has bought it since."""
    put_in_force("scripted", strategy)
    sale, customer = a_sale(stock=1), a_customer()
    seen = fresh(sale)
    order = buy(sale, customer=customer).order
    again = place_order(
        PurchaseRequest(customer_id=customer.pk, sale=seen, quantity=1, key="k", is_first=True)
    )
    assert (again.order, again.replayed) == (order, True)
    with pytest.raises(SoldOut):
        place_order(
            PurchaseRequest(
                customer_id=a_customer().pk, sale=seen, quantity=1, key="k", is_first=True
            )
        )


@pytest.mark.parametrize("times", [{"opens_in": 60}, {"opens_in": -60, "lasts": 59}])
def test_nothing_is_sold_before_or_after_the_sale(times, guard) -> None:
    sale = a_sale(**times)
    with pytest.raises(NotOpen):
        buy(sale)
    assert nothing_changed(sale)
    assert not guard.calls, "it was refused before it cost a lock"


def test_limit_counts_live_orders_only() -> None:
    sale, customer = a_sale(limit=3), a_customer()
    first = buy(sale, customer=customer, quantity=2, key="1").order
    for quantity in (2, 3, 4):
        with pytest.raises(LimitReached):
            buy(sale, customer=customer, quantity=quantity, key="2")
    buy(sale, customer=customer, quantity=1, key="2")
    with pytest.raises(LimitReached):
        buy(sale, customer=customer, key="3")
    cancel_order(order=first)
    buy(sale, customer=customer, quantity=2, key="3")
    with pytest.raises(LimitReached):
        buy(sale, customer=customer, key="4")
    buy(sale, quantity=3)  # another customer has a limit of its own
    assert audit_sale(sale=sale).ok


def test_two_concurrent_first_purchases_succeed(guard) -> None:
    """Both have the hint that they are the first; both insert the quota row."""
    sale, customer = a_sale(limit=3), a_customer()
    guard.then("acquire", lambda: buy(sale, customer=customer, quantity=2, key="1"))
    buy(sale, customer=customer, quantity=1, key="2")
    assert CustomerQuota.objects.get().taken == 3
    assert audit_sale(sale=sale).ok


def test_sold_out_is_refused_before_the_lock(guard) -> None:
    sale = a_sale(stock=1)
    buy(sale)
    asked = len(guard.calls)
    with pytest.raises(SoldOut):
        buy(sale)
    assert len(guard.calls) == asked


@EVERY
def test_sold_out_while_waiting_for_the_lock(strategy, guard) -> None:
    put_in_force("scripted", strategy)
    sale = a_sale(stock=1)
    guard.then("acquire", lambda: buy(sale))
    with pytest.raises(SoldOut):
        buy(sale)
    audit = audit_sale(sale=sale)
    assert (audit.ok, audit.available, audit.held) == (True, 0, 1)


@pytest.mark.parametrize("quantity", [0, -1])
def test_quantity_below_one_is_refused(quantity) -> None:
    sale = a_sale()
    with pytest.raises(BadInput):
        buy(sale, quantity=quantity)
    assert nothing_changed(sale)
