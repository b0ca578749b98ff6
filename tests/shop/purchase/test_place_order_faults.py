"""One purchase whose lock, lock store or database fails."""

from __future__ import annotations

import time
from functools import partial
from types import SimpleNamespace
from unittest.mock import DEFAULT, Mock, patch

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from inventory import stock
from inventory.exceptions import OutOfStock
from inventory.models import Stock, WriteStrategy
from locking import LockTimeout, LockUnavailable, policy
from locking.failpoints import armed
from locking.models import LockPolicyChange
from locking.policy import active
from shop.administration.audit import audit_sale
from shop.errors import Overloaded, QueueFull, ServiceUnavailable, SoldOut
from shop.models import Order, Sale
from shop.platform.deadline import Deadline, within_deadline
from shop.purchase import place_order
from shop.sales.purchase_request import PurchaseRequest
from shop.sales.stock_lock import learn_newer_fence, lock_name
from tests.inventory.test_commit import END
from tests.locking.scripted import ScriptedBackend, unavailable
from tests.shop.making import a_customer, a_sale, fresh, put_in_force
from tests.shop.purchases import (
    EVERY,
    LOST,
    armed_once,
    buy,
    failing_once,
    held_by_another,
    nothing_changed,
)

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("guard")]


def test_held_lock_is_overloaded(guard, settings) -> None:
    sale = a_sale()
    settings.LOCK_TIMEOUT = 0.01
    with held_by_another(guard, lock_name(sale.pk)), pytest.raises(Overloaded) as caught:
        buy(sale)
    assert caught.value.code == "busy"
    assert nothing_changed(sale)
    buy(sale)  # the same key may be sent again


def test_replay_needs_no_lock_despite_the_hint(guard, settings) -> None:
    """The first form got no reply; its page says that the customer has no order yet."""
    sale, customer = a_sale(), a_customer()
    order = buy(sale, customer=customer, is_first=True).order
    settings.LOCK_TIMEOUT = 0.01
    with held_by_another(guard, lock_name(sale.pk)):
        assert buy(sale, customer=customer, is_first=True).order == order


def test_lock_timeout_counts_from_the_request(guard, settings) -> None:
    """Otherwise this would take a minute."""
    sale = a_sale()
    settings.LOCK_TIMEOUT, settings.HARD_DEADLINE = 60.0, 90.0
    with held_by_another(guard, lock_name(sale.pk)):
        began = time.monotonic()
        with pytest.raises(Overloaded), within_deadline(Deadline(began - 60)):
            buy(sale)
        assert time.monotonic() < began + 30
    assert nothing_changed(sale)


@pytest.mark.parametrize("at", ["the start", "the lock"])
def test_nothing_is_written_after_the_hard_deadline(at, guard, settings) -> None:
    sale = a_sale()
    late = partial(setattr, settings, "HARD_DEADLINE", -1.0)
    if at == "the start":
        late()
    else:
        guard.then("acquire", late)
    with pytest.raises(ServiceUnavailable):
        buy(sale)
    assert nothing_changed(sale)
    assert bool(guard.times("acquire")) == (at == "the lock")
    settings.HARD_DEADLINE = 60.0
    buy(sale)  # it was given back


def test_no_query_starts_after_the_hard_deadline(guard, settings) -> None:
    """A last look for an order with the key made a refusal wait for a slow database again."""
    sale, customer = a_sale(), a_customer()
    settings.LOCK_TIMEOUT = 0.01
    with held_by_another(guard, lock_name(sale.pk)):
        guard.then("acquire", partial(setattr, settings, "HARD_DEADLINE", -1.0))
        with CaptureQueriesContext(connection) as queries, pytest.raises(Overloaded) as caught:
            buy(sale, customer=customer)
    assert caught.value.code == "busy"
    assert sum("shop_order" in query["sql"] for query in queries) == 1, "before the lock"


def test_unavailable_lock_store_is_service_unavailable(guard) -> None:
    sale = a_sale()
    guard.then("acquire", unavailable)
    with pytest.raises(ServiceUnavailable):
        buy(sale)
    assert nothing_changed(sale)
    buy(sale)


@pytest.mark.parametrize("fault", ["broken", "silent"])
def test_committed_order_survives_the_loss_of_its_lock(fault, guard, caplog) -> None:
    sale = a_sale()

    def inject() -> None:
        if fault == "broken":
            assert guard.break_lock(lock_name(sale.pk))
        else:
            guard.then("release", unavailable)

    with armed("stock.committed", inject):
        order = buy(sale).order
    assert order.status == Order.Status.PENDING
    assert "is committed, but its lock was" in caplog.text
    assert audit_sale(sale=sale).ok


def taken_over(guard: ScriptedBackend, sale: Sale, others: list[Order]):
    """Grant the lock to another customer once, while the lease seems valid."""

    def take_over() -> None:
        guard.break_lock(lock_name(sale.pk))
        other = SimpleNamespace(
            current_task=lambda: "another caller", _get_running_loop=lambda: "its loop"
        )
        with patch("locking.types.asyncio", other):
            others.append(buy(sale).order)

    return armed_once("stock.read", take_over)


@EVERY
def test_overtaken_holder_writes_nothing_stale(strategy, guard) -> None:
    """Two holders write one stock row. Naive is the control: it sells the last unit twice."""
    put_in_force("scripted", strategy)
    sale, others = a_sale(stock=1), []
    with taken_over(guard, sale, others):
        if strategy == WriteStrategy.NAIVE:
            buy(sale)
            audit = audit_sale(sale=sale)
            assert (audit.oversold, audit.ok) == (1, False)
            return
        with pytest.raises(SoldOut):
            buy(sale)
    audit = audit_sale(sale=sale)
    assert (audit.ok, audit.stale_writes_refused) == (True, 1)
    assert Order.objects.get() == others[0]


@pytest.mark.parametrize("strategy", ["fenced", "conditional"])
def test_refused_stale_write_is_retried_with_a_new_lease(strategy, guard) -> None:
    put_in_force("scripted", strategy)
    sale, others = a_sale(stock=2), []
    with taken_over(guard, sale, others):
        order = buy(sale).order
    assert order != others[0]
    audit = audit_sale(sale=sale)
    assert (audit.ok, audit.available, audit.held, audit.stale_writes_refused) == (True, 0, 2, 1)


def test_refused_fence_raises_the_token_floor(guard, monkeypatch) -> None:
    """A store that restarted empty grants old tokens until its token floor is raised."""
    sale = a_sale()
    Stock.objects.update(fence_epoch=1, fence_token=1000)

    def observe(name: str, token: int) -> None:
        assert name == lock_name(sale.pk)
        guard.tokens = token

    monkeypatch.setattr(guard, "raise_token_floor", observe)
    buy(sale)
    assert Stock.objects.get().fence_token > 1000
    assert Stock.objects.get().fence_epoch == 1
    assert Stock.objects.get().stale_writes_refused == 1


def test_lower_tokens_raise_the_epoch(guard) -> None:
    """A10: a new ensemble counts from one. Every write was refused until staff switched."""
    sale = a_sale()
    Stock.objects.update(fence_epoch=1, fence_token=1000)
    buy(sale)
    stock_row = Stock.objects.get()
    assert (stock_row.fence_epoch, stock_row.stale_writes_refused) == (2, 1)
    assert 0 < stock_row.fence_token < 1000
    change = LockPolicyChange.objects.get()
    assert (change.epoch, change.reason) == (2, "tokens went back")
    assert change.from_backend == change.to_backend


def test_late_writer_does_not_raise_the_epoch(guard) -> None:
    """The control: the next grant of a sound store is newer than what the row carries."""
    sale = a_sale()
    guard.tokens = 1000
    Stock.objects.update(fence_epoch=1, fence_token=1000)
    learn_newer_fence(sale)
    assert policy.current(0).epoch == 1
    guard.tokens = 999
    learn_newer_fence(sale)
    assert policy.current(0).epoch == 2


def test_repeated_refusals_of_the_fence_are_overloaded(guard, settings) -> None:
    sale = a_sale()
    Stock.objects.update(fence_epoch=9)
    with pytest.raises(Overloaded):
        buy(sale)
    assert Stock.objects.get().stale_writes_refused == settings.MAX_ATTEMPTS
    assert nothing_changed(sale)


def test_unreadable_policy_is_service_unavailable(monkeypatch) -> None:
    sale = a_sale()
    policy.invalidate()
    monkeypatch.setattr(active, "stored_policy", Mock(side_effect=LockUnavailable))
    with pytest.raises(ServiceUnavailable):
        buy(sale)


@pytest.mark.django_db(transaction=True)
def test_deadlock_is_retried(monkeypatch) -> None:
    sale, deadlock = a_sale(), OperationalError(1213, "Deadlock found")
    reserve = Mock(wraps=stock.reserve, side_effect=[deadlock, DEFAULT])
    monkeypatch.setattr(stock, "reserve", reserve)
    buy(sale)
    assert reserve.call_count == 2
    assert Order.objects.count() == 1
    assert audit_sale(sale=sale).ok


@EVERY
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.only("mysql", "postgresql")
@pytest.mark.django_db(transaction=True)
def test_purchase_replaces_a_broken_connection(strategy, is_first) -> None:
    """The database closed it while it was idle; the first statement of a purchase finds out."""
    put_in_force("process", strategy)
    sale, customer = fresh(a_sale()), a_customer()
    policy.current()
    with pytest.raises(OperationalError), connection.cursor() as cursor:
        cursor.execute(END[connection.vendor])
    try:
        wanted = {"customer_id": customer.pk, "sale": sale, "quantity": 1, "key": "k"}
        place_order.place_order(PurchaseRequest(**wanted, is_first=is_first))
    finally:
        connection.close()
    assert Order.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_order_is_found_after_a_lost_commit_reply() -> None:
    """The order is committed, the reply is lost: no second order, no error."""
    sale = a_sale()
    with failing_once(LOST):
        assert buy(sale).replayed
    assert Order.objects.count() == 1
    assert audit_sale(sale=sale).ok


@pytest.mark.parametrize("timeout", [0.0, 60.0])
@pytest.mark.django_db(transaction=True)
def test_lost_commit_reply_is_not_reported_as_refusal(timeout, monkeypatch, settings) -> None:
    """The reply to the COMMIT is lost, and then the database."""
    sale, customer = a_sale(), a_customer()

    def inject() -> None:
        monkeypatch.setattr(place_order, "_earlier_orders", Mock(side_effect=LOST))
        raise LOST

    settings.LOCK_TIMEOUT = timeout
    with armed("stock.committed", inject), pytest.raises(ServiceUnavailable) as refused:
        buy(sale, customer=customer, is_first=True)
    assert Order.objects.count() == 1
    assert "othing was bought" not in str(refused.value.advice)
    monkeypatch.undo()
    assert buy(sale, customer=customer).replayed


@pytest.mark.parametrize("then", [QueueFull(), OutOfStock(), LockTimeout()], ids=repr)
@pytest.mark.django_db(transaction=True)
def test_unknown_outcome_stays_unknown(then, monkeypatch) -> None:
    """The connection is lost, no order is found, and the second attempt is refused."""
    sale = a_sale()

    def inject() -> None:
        monkeypatch.setattr(place_order, "submit", Mock(side_effect=then))
        raise LOST

    with armed("stock.read", inject), pytest.raises(ServiceUnavailable):
        buy(sale)
    monkeypatch.undo()
    assert not buy(sale).replayed
