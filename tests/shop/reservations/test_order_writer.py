"""Outcomes of the entries of a queued sale, and units that are released."""

import threading
from contextlib import ExitStack, nullcontext
from unittest.mock import patch

import pytest
from django.db import connection

from inventory.exceptions import OutcomeUnknown
from locking import locks
from shop.errors import ServiceUnavailable
from shop.models import Order, RejectedReservation, Sale, User
from shop.orders.service import cancel_order
from shop.platform import metrics
from shop.reservations import consumer, order_writer, store
from shop.reservations.reconciliation import load, reconcile
from shop.sales.stock_lock import lock_name
from tests.locking.calls import held_by_another
from tests.shop.making import a_customer, a_sale, fresh, put_in_force
from tests.shop.purchases import EVERY, LOST, buy
from tests.shop.queued import (
    a_queued_sale,
    ask,
    assert_sound,
    consume,
    status,
    told,
)

pytestmark = [pytest.mark.django_db, pytest.mark.stores]


@pytest.mark.django_db(transaction=True)
def test_reservation_of_a_deleted_customer_is_rejected(admin_client, li, shop) -> None:
    """The foreign key refuses the batch, and only this reservation fails."""
    sale = a_queued_sale(stock=5)
    lost, other = ask(sale, li, quantity=2), ask(sale)
    li.delete()
    consume()
    assert [status(lost), status(other)] == ["failed", "won"]
    assert shop.get(lost.url).status_code == 302
    assert shop.get(lost.url, headers={"Accept": "application/json"}).status_code == 401
    assert_sound(sale, held=1, left=4)
    page = admin_client.get("/admin/shop/rejectedreservation/")
    assert lost.number in page.text


def test_key_of_another_sale_is_a_key_of_its_own() -> None:
    """A hundred reservations are one transaction, whatever keys their customers have used."""
    customer, sale = a_customer(), a_queued_sale(stock=200)
    buy(a_sale(), customer=customer)
    queued = [ask(sale, customer), *(ask(sale) for _ in range(99))]
    with patch.object(order_writer, "withdraw", wraps=order_writer.withdraw) as commit:
        consume()
    assert {status(one) for one in queued} == {"won"}
    assert commit.call_count == 1
    assert not buy(a_sale(), customer=customer).replayed, "of a direct sale too"
    assert_sound(sale, held=100, left=100)


def test_lowered_limit_is_enforced_when_written() -> None:
    sale, customer = a_queued_sale(stock=5, limit=2), a_customer()
    both = [ask(sale, customer, key=key) for key in "ab"]
    Sale.objects.update(limit_per_customer=1)
    consume()
    assert [status(one) for one in both] == ["won", "limit"]
    assert_sound(sale, held=1, left=4)


def test_reservation_under_a_raised_limit_is_written(monkeypatch) -> None:
    """The consumer read the sale up to a second ago, the buyer a tenth of a second ago."""
    monkeypatch.setattr(consumer, "REFRESH_INTERVAL", 60.0)
    sale, running = a_queued_sale(limit=1), consumer.Consumer(threading.Event())
    load(sale=sale)
    first = ask(sale)
    assert running.round() == 1
    Sale.objects.update(limit_per_customer=3)
    second = ask(sale, User.objects.get(pk=first.customer_id), quantity=2, key="more")
    third = ask(sale, quantity=3)
    assert running.round() == 2
    assert [status(one) for one in (first, second, third)] == ["won"] * 3
    assert_sound(sale, held=6, left=4)


@EVERY
@pytest.mark.parametrize("is_late", [False, True])
def test_order_of_an_unanswered_commit_is_not_rejected(strategy, is_late, settings) -> None:
    """The last attempt commits the batch, and its reply is lost; or the commit is yet to come."""
    put_in_force("process", strategy)
    sale = a_queued_sale(stock=1)
    queued, commit = ask(sale), order_writer.withdraw

    def commit_without_reply(*args: object, **options: object) -> None:
        if unanswered.call_count >= settings.MAX_ATTEMPTS and not is_late:
            commit(*args, **options)
        raise OutcomeUnknown if unanswered.call_count > settings.MAX_ATTEMPTS else LOST

    with patch.object(order_writer, "withdraw", side_effect=commit_without_reply) as unanswered:
        consumer.Consumer(threading.Event()).round()
    assert unanswered.call_count >= settings.MAX_ATTEMPTS
    consume()
    assert status(queued) == "won"
    assert not RejectedReservation.objects.exists()
    assert_sound(sale, held=1, left=0)


@pytest.mark.django_db(transaction=True)
def test_held_locks_delay_no_other_sale(monkeypatch) -> None:
    """Each wait takes up to five seconds; a health check allows fifteen without a sign of life."""
    monkeypatch.setattr(order_writer, "BATCH_LOCK_TIMEOUT", 0.05)
    *stuck, _free = sales = [a_queued_sale() for _ in range(4)]
    queued, beats = [ask(sale) for sale in sales], list[None]()
    monkeypatch.setattr(metrics, "beat", lambda: beats.append(None))
    with ExitStack() as held:
        for sale in stuck:
            held.enter_context(held_by_another(locks["process"], lock_name(sale.pk)))
        consumer.Consumer(threading.Event()).round()
        assert [status(one) for one in queued] == [*["waiting"] * 3, "won"]
    assert len(beats) == len(sales)
    consume()
    assert {status(one) for one in queued} == {"won"}


@pytest.mark.only("mysql")
@pytest.mark.django_db(transaction=True)
def test_no_entry_is_rejected_while_the_row_is_blocked(settings) -> None:
    """Which may take hours: reservations keep their units."""
    sale = a_queued_sale(stock=2 * order_writer.MAX_FAILURES)
    all_ = [ask(sale) for _ in range(2 * order_writer.MAX_FAILURES)]
    holding = connection.copy()
    with holding.cursor() as other, connection.cursor() as cursor:
        other.execute("START TRANSACTION")
        other.execute("UPDATE inventory_stock SET quantity = quantity + 0")
        cursor.execute("SET innodb_lock_wait_timeout = 0")
    with patch.object(order_writer, "withdraw", wraps=order_writer.withdraw) as commit:
        consumer.Consumer(threading.Event()).round()
    connection.close()
    holding.close()
    assert {status(each) for each in all_} == {"waiting"}
    assert commit.call_count <= settings.MAX_ATTEMPTS + order_writer.MAX_FAILURES
    consume()
    assert {status(each) for each in all_} == {"won"}
    assert not RejectedReservation.objects.exists()


@pytest.mark.parametrize("is_down", [False, True])
def test_units_of_a_closed_order_can_be_reserved_again(is_down) -> None:
    sale, customer = a_queued_sale(stock=2, limit=2), a_customer()
    ask(sale, customer, quantity=2)
    consume()
    outage = patch.object(store, "release", side_effect=ServiceUnavailable)
    with outage if is_down else nullcontext():
        cancel_order(order=Order.objects.select_related("sale").get())
    if is_down:
        assert told(sale, 1) == {"SoldOut": 1}
        repair = reconcile(sale=fresh(sale))
        assert (repair.drift, repair.customers) == (-2, 1)
    again = ask(sale, customer, quantity=2, key="again")
    consume()
    assert status(again) == "won"
    assert_sound(sale, held=2, left=0)
