"""Transitions of an order: each happens once, and its units are released at most once."""

from datetime import timedelta
from functools import partial

import pytest
from django.db import OperationalError
from django.utils import timezone

from inventory.models import Stock, StockMovement
from inventory.statements import Statement
from locking import locks
from shop.administration.audit import audit_sale
from shop.errors import InvalidTransition, Overloaded
from shop.models import CustomerQuota, Order, Sale
from shop.orders import service as orders
from shop.orders.service import cancel_order, expire_unpaid_orders, pay_order
from shop.sales.stock_lock import lock_name
from tests.locking.calls import held_by_another
from tests.locking.scripted import unavailable
from tests.shop.making import a_customer, a_sale
from tests.shop.purchases import buy

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("guard")]

LATER = timedelta(hours=1)


@pytest.fixture
def sale() -> Sale:
    return a_sale(stock=5)


@pytest.fixture
def order(sale: Sale) -> Order:
    return an_order(sale)


def an_order(sale: Sale, *, quantity: int = 2, overdue: bool = False) -> Order:
    order = buy(sale, quantity=quantity).order
    if overdue:
        order.pay_by = timezone.now() - LATER
        order.save()
    return order


def count(sale: Sale) -> tuple[int, int, int]:
    audit = audit_sale(sale=sale)
    assert audit.ok, audit.breaches
    return audit.available, audit.held, audit.sold


def returns(order: Order) -> int:
    return StockMovement.objects.filter(order_number=order.number, reason="returned").count()


def test_only_overdue_orders_expire_oldest_first(sale, order) -> None:
    paid, late, later = an_order(sale, quantity=1), an_order(sale, quantity=1, overdue=True), order
    pay_order(order=paid)
    assert expire_unpaid_orders() == 1
    for each, status in ((paid, "paid"), (late, "expired"), (later, "pending")):
        each.refresh_from_db()
        assert each.status == status
    assert count(sale) == (2, 2, 1)
    assert expire_unpaid_orders() == 0
    oldest = an_order(sale, quantity=1, overdue=True)
    assert expire_unpaid_orders(now=timezone.now() + LATER, limit=1) == 1
    oldest.refresh_from_db()
    assert oldest.status == "expired"
    assert expire_unpaid_orders(now=timezone.now() + LATER) == 1
    assert count(sale) == (4, 0, 1)


@pytest.mark.parametrize("first", [pay_order, cancel_order])
@pytest.mark.parametrize("second", [pay_order, cancel_order])
def test_only_one_transition_succeeds(sale, order, first, second) -> None:
    stale = Order.objects.get(pk=order.pk)  # as another request read it before
    first(order=order)
    for known in (order, stale):
        with pytest.raises(InvalidTransition):
            second(order=known)
    order.refresh_from_db()
    assert order.status == ("paid" if first is pay_order else "cancelled")
    assert order.closed_at
    assert returns(order) == (first is cancel_order)
    assert CustomerQuota.objects.get().taken == 2 * (first is pay_order)
    count(sale)


def test_expiry_skips_a_sale_whose_lock_is_held(guard, sale, settings) -> None:
    settings.LOCK_TIMEOUT = 0.01
    an_order(sale, overdue=True)
    other = a_sale()
    an_order(other, overdue=True)
    with held_by_another(locks["scripted"], lock_name(sale.pk)):
        assert expire_unpaid_orders() == 1
        assert (count(sale), count(other)) == ((3, 2, 0), (10, 0, 0))
        with pytest.raises(Overloaded):
            cancel_order(order=Order.objects.get(sale=sale))


def expect_expired(sale: Sale, number: int) -> None:
    expired = Order.objects.filter(sale=sale, status="expired")
    assert [returns(order) for order in expired] == [1] * number


def test_orders_of_a_sale_expire_in_batches(guard, monkeypatch) -> None:
    """With one grant and one transaction each; a customer may have several orders in it."""
    monkeypatch.setattr(orders, "BATCH", 3, raising=False)
    sale, customers = a_sale(stock=20, limit=5), [a_customer() for _ in range(4)]
    for number in range(7):
        of = {"customer": customers[number % 4], "quantity": 1 + number % 2, "key": str(number)}
        buy(sale, **of)
    before = guard.tokens
    assert expire_unpaid_orders(now=timezone.now() + LATER) == 7
    assert guard.tokens - before == 3
    expect_expired(sale, 7)
    assert count(sale) == (20, 0, 0)
    assert set(CustomerQuota.objects.values_list("taken", flat=True)) == {0}


@pytest.mark.parametrize("is_guarded", [True, False])
def test_order_paid_while_its_batch_is_written_stays_paid(sale, monkeypatch, is_guarded) -> None:
    """Its payment does not wait for the lock; by its own clock, the order is not overdue yet."""
    paid = an_order(sale, quantity=1, overdue=True)
    for _ in range(2):
        an_order(sale, quantity=1, overdue=True)

    def commit_late(statements: list[Statement]) -> list[int]:
        Order.objects.filter(pk=paid.pk).update(status="paid")
        return commit(statements)

    commit = orders.commit
    monkeypatch.setattr(orders, "commit", commit_late)
    if not is_guarded:  # the control: the units of the paid order are sold again
        monkeypatch.setattr(orders, "Statement", lambda *of, rows=1, **more: Statement(*of, **more))
        expire_unpaid_orders()
        assert not audit_sale(sale=sale).ok
        return
    assert expire_unpaid_orders() == 2
    assert returns(paid) == 0
    expect_expired(sale, 2)
    assert count(sale) == (4, 0, 1)


def test_unwritable_row_does_not_delay_other_sales(sale, monkeypatch, settings) -> None:
    """As after a client stopped in its transaction: each attempt waits for its timeout."""
    for _ in range(5):
        an_order(sale, quantity=1, overdue=True)
    other, tried = a_sale(), []
    an_order(other, overdue=True)

    def end_or_fail(closed: list[Order], *change: str) -> Statement:
        if closed[0].sale_id == sale.pk:
            tried.append(closed)
            raise OperationalError(1205, "Lock wait timeout exceeded")
        return end(closed, *change)

    end = orders._end
    monkeypatch.setattr(orders, "_end", end_or_fail)
    assert expire_unpaid_orders() == 1
    assert len(tried) == 1 + settings.MAX_ATTEMPTS
    monkeypatch.undo()
    assert expire_unpaid_orders() == 5
    assert (count(sale), count(other)) == ((5, 0, 0), (10, 0, 0))


def test_order_that_the_database_refuses_delays_no_other(sale) -> None:
    """As after a repair by hand: the ledger has its return already."""
    refused = [an_order(sale, quantity=1, overdue=True) for _ in range(4)]
    an_order(sale, quantity=1, overdue=True)
    other = a_sale()
    an_order(other, overdue=True)
    for order in refused:
        StockMovement.objects.create(
            stock=sale.stock, delta=1, reason="returned", order_number=order.number
        )
    assert expire_unpaid_orders() == 2
    expect_expired(sale, 1)
    assert count(other) == (10, 0, 0)


@pytest.mark.parametrize("fault", ["broken", "silent"])
def test_committed_return_survives_the_loss_of_its_lock(fault, guard, sale, order) -> None:
    broken = partial(guard.break_lock, lock_name(sale.pk))
    guard.then("release", broken if fault == "broken" else unavailable)
    cancel_order(order=order)
    assert (order.status, count(sale)) == ("cancelled", (5, 0, 0))


def test_repeatedly_stale_return_is_overloaded(guard, sale, order, settings) -> None:
    Stock.objects.update(fence_epoch=9)
    with pytest.raises(Overloaded):
        cancel_order(order=order)
    assert Stock.objects.get().stale_writes_refused == settings.MAX_ATTEMPTS
    order.refresh_from_db()
    assert (order.status, returns(order)) == ("pending", 0)
