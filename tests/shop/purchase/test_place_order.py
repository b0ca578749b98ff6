"""Direct purchases: what one writes, what its customer may buy, and what it does after a fault.

Refusals are in tests/shop/web/test_bad_purchases.py.
"""

import time
from datetime import timedelta
from unittest.mock import Mock, patch

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from inventory.exceptions import OutOfStock
from inventory.models import Stock
from locking import LockTimeout, locks, policy
from locking.failpoints import armed
from locking.models import LockPolicyChange
from shop.administration.audit import audit_sale
from shop.errors import (
    BadInput,
    Overloaded,
    QueueFull,
    ServiceUnavailable,
    SignInFirst,
    SoldOut,
)
from shop.models import CustomerQuota, Order, Sale, User
from shop.platform.deadline import Deadline, within_deadline
from shop.purchase import place_order
from shop.sales.purchase_request import PurchaseRequest
from shop.sales.stock_lock import learn_newer_fence, lock_name
from tests.inventory.test_commit import END
from tests.locking.calls import held_by_another
from tests.locking.scripted import unavailable
from tests.shop.making import a_customer, a_sale, fresh, put_in_force
from tests.shop.purchases import EVERY, LOST, buy, nothing_changed
from tests.shop.queued import a_queued_sale, ask

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
    assert CustomerQuota.objects.get(customer=customer, sale=sale).taken == 2
    audit = audit_sale(sale=sale)
    assert (audit.ok, audit.initial, audit.available, audit.held, audit.sold) == (True, 5, 3, 2, 0)


def test_keys_are_compared_exactly() -> None:
    """Databases disagree on capitals, accents and trailing spaces; the shop does not."""
    sale, customer = a_sale(stock=10, limit=10), a_customer()
    keys = ["key", "KEY", "kéy", "key ", "key\t", "k" * 255]
    orders = {buy(sale, customer=customer, key=key).order.pk for key in keys}
    assert len(orders) == len(keys)


@EVERY
def test_replay_of_the_last_unit_with_a_wrong_hint(strategy) -> None:
    """The cached sale has one unit left; the first request has bought it since."""
    put_in_force("scripted", strategy)
    sale, customer = a_sale(stock=1), a_customer()
    again = PurchaseRequest(customer.pk, fresh(sale), 1, "k", is_first=True)
    order = buy(sale, customer=customer).order
    assert place_order.place_order(again).order == order
    with pytest.raises(SoldOut):
        place_order.place_order(again._replace(customer_id=a_customer().pk))


@pytest.mark.parametrize("quantity", [0, -1])
def test_quantity_below_one_is_refused(quantity) -> None:
    for sale, service in ((a_sale(), buy), (a_queued_sale(), ask)):
        with pytest.raises(BadInput):
            service(sale, quantity=quantity)
        assert nothing_changed(sale)


def test_lock_timeout_counts_from_the_request(guard, settings) -> None:
    """Otherwise this would take a minute."""
    sale = a_sale()
    settings.LOCK_TIMEOUT, settings.HARD_DEADLINE = 60.0, 90.0
    with held_by_another(locks["scripted"], lock_name(sale.pk)):
        began = time.monotonic()
        with pytest.raises(Overloaded), within_deadline(Deadline(began - 60)):
            buy(sale)
        assert time.monotonic() < began + 30
    assert nothing_changed(sale)


@pytest.mark.parametrize("at", ["the start", "a slow read", "the lock", "a refusal"])
def test_nothing_is_written_after_the_hard_deadline(at, guard, settings) -> None:
    sale = a_sale()

    def late() -> None:
        settings.HARD_DEADLINE = -1.0
        if at == "a refusal":
            raise LockTimeout

    reads = {"side_effect": lambda wanted: late() or []} if at == "a slow read" else {}
    if at == "the start":
        late()
    elif not reads:
        guard.then("acquire", late)
    with (
        patch.object(place_order, "_earlier_orders", return_value=[], **reads),
        pytest.raises(Overloaded if at == "a refusal" else ServiceUnavailable),
    ):
        buy(sale)
    assert nothing_changed(sale)
    assert bool(guard.times("acquire")) == (at in ("the lock", "a refusal"))
    settings.HARD_DEADLINE = 60.0
    buy(sale)  # it was given back


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
    reported = "is committed, but its lock was" if fault == "broken" else "not released: no reply"
    assert reported in caplog.text
    assert audit_sale(sale=sale).ok


@pytest.mark.parametrize("strategy", ["fenced", "conditional"])
def test_refused_fence_raises_the_token_floor(strategy, guard, monkeypatch) -> None:
    """A store that restarted empty grants old tokens until its token floor is raised."""
    put_in_force("scripted", strategy)
    sale, guard.tokens = a_sale(), 0
    Stock.objects.update(fence_epoch=1, fence_token=1000)

    def observe(name: str, token: int) -> None:
        assert name == lock_name(sale.pk)
        guard.tokens = token

    monkeypatch.setattr(guard, "raise_token_floor", observe)
    buy(sale)
    row = Stock.objects.get()
    assert (row.fence_epoch, row.fence_token > 1000, row.stale_writes_refused) == (1, True, 1)
    assert audit_sale(sale=sale).ok


def test_only_lower_tokens_raise_the_epoch(guard) -> None:
    """A new ensemble counts from one: every write would be refused until staff switch.

    The control is a late writer: the next grant of a sound store is newer than the row's.
    """
    sale = a_sale()
    guard.tokens = 1000
    Stock.objects.update(fence_epoch=1, fence_token=1000)
    learn_newer_fence(sale)
    assert policy.current(0).epoch == 1
    guard.tokens = 998
    buy(sale)
    assert policy.current(0).epoch == Stock.objects.get().fence_epoch == 2
    change = LockPolicyChange.objects.get()
    assert (change.reason, change.from_backend) == ("tokens went back", change.to_backend)


def test_repeated_refusals_of_the_fence_are_overloaded(guard, settings) -> None:
    sale = a_sale()
    Stock.objects.update(fence_epoch=9)
    with pytest.raises(Overloaded):
        buy(sale)
    assert Stock.objects.get().stale_writes_refused == settings.MAX_ATTEMPTS
    assert nothing_changed(sale)


@pytest.mark.django_db(transaction=True)
def test_customer_whose_account_is_gone_has_to_sign_in() -> None:
    sale, customer = a_sale(), a_customer()
    User.objects.all().delete()
    with pytest.raises(SignInFirst):
        buy(sale, customer=customer)
    assert nothing_changed(sale)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.only("mysql", "postgresql")
@pytest.mark.django_db(transaction=True)
def test_purchase_replaces_a_broken_connection(is_first) -> None:
    """The database closed it while it was idle; the first statement of a purchase finds out."""
    put_in_force("process")
    wanted = PurchaseRequest(a_customer().pk, fresh(a_sale()), 1, "k", is_first)
    policy.current()
    with pytest.raises(OperationalError), connection.cursor() as cursor:
        cursor.execute(END[connection.vendor])
    try:
        place_order.place_order(wanted)
    finally:
        connection.close()
    assert Order.objects.count() == 1


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


def end(sale: Sale) -> None:
    sale.closes_at = timezone.now()


def lower_the_limit(sale: Sale) -> None:
    sale.limit_per_customer = 0


@pytest.mark.parametrize("refuse", [QueueFull(), OutOfStock(), LockTimeout(), end, lower_the_limit])
@pytest.mark.django_db(transaction=True)
def test_unknown_outcome_stays_unknown(refuse, monkeypatch) -> None:
    """The connection is lost, no order is found, and the second attempt is refused."""
    sale, customer = fresh(a_sale()), a_customer()
    wanted = PurchaseRequest(customer.pk, sale, 1, "k")

    def inject() -> None:
        if isinstance(refuse, Exception):
            monkeypatch.setattr(place_order, "submit", Mock(side_effect=refuse))
        else:
            refuse(sale)
        raise LOST

    with armed("stock.read", inject), pytest.raises(ServiceUnavailable):
        place_order.place_order(wanted)
    monkeypatch.undo()
    assert not buy(sale).replayed
