"""Payments through the payment provider: each ends in one state."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest
from django.db import connections
from django.test import Client
from django.utils import timezone

from inventory.statements import Statement
from inventory.stock import commit
from loadtest.web.gateway import report_outcome
from locking.failpoints import armed
from shop.errors import InvalidTransition
from shop.models import Order, Payment
from shop.orders import service as orders
from shop.orders.service import cancel_order
from shop.payments.service import mark_paid, refund_payments, start_payment, time_out_payments
from tests.shop.making import a_sale, signed_in
from tests.shop.purchases import buy, expire_the_pending_order

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]


@pytest.mark.parametrize("provider", ["simulated", "none"])
def test_order_is_paid_in_the_currency_in_which_it_was_placed(provider, order, shop, settings):
    settings.CURRENCY, settings.PAYMENT_PROVIDER = "EUR", provider
    assert "¥9.90" in shop.get(order.get_absolute_url()).text
    assert "¥9.90" in shop.get("/orders/").text
    if provider == "none":
        mark_paid(order=order)
    else:
        start_payment(order=order)
    assert Payment.objects.get().currency == order.receipt["currency"] == "CNY"
    assert buy(a_sale()).order.receipt["currency"] == "EUR"
    Order.objects.update(currency="")  # the version before writes none
    assert "€9.90" in shop.get(order.get_absolute_url()).text
    order.refresh_from_db()
    assert order.receipt["currency"] == "EUR"


def page_of(payment: Payment) -> str:
    return f"/payments/{payment.reference}/"


def told(payment: Payment, approved: bool = True) -> str:
    """Return the payment's status after the report."""
    return report_outcome(payment=payment, approved=approved).status


def told_in_threads(all_: list[Payment], meet: Callable[[], object]) -> list[str]:
    """Return the statuses after approvals that meet before they are written."""

    def tell(payment: Payment) -> str:
        try:
            return told(payment)
        finally:
            connections.close_all()

    with armed("payment.approve", meet), ThreadPoolExecutor(len(all_)) as pool:
        return sorted(pool.map(tell, all_))


def status(order: Order) -> str:
    return Order.objects.values_list("status", flat=True).get(pk=order.pk)


@pytest.mark.parametrize(
    ("choice", "ends", "paid", "said"),
    [
        ("approve", "approved", "paid", "Thank you"),
        ("twice", "approved", "paid", "Thank you"),
        ("decline", "declined", "pending", "Payment declined"),
        ("silent", "started", "pending", "Waiting for the payment provider"),
    ],
)
def test_four_payment_outcomes(shop, order, choice, ends, paid, said):
    page = order.get_absolute_url()
    there = shop.post(f"{page}payment/")["Location"]
    assert f"¥{order.total}" in shop.get(there).text
    back = shop.post(f"{there}answer/", {"choice": choice})
    assert (back.status_code, back["Location"]) == (303, page)
    assert (Payment.objects.get().status, status(order)) == (ends, paid)
    assert said in shop.get(page).text
    again = shop.post(f"{page}payment/").status_code
    assert again == (409 if paid == "paid" else 303)


def test_payment_without_callback_times_out_and_can_be_retried(shop, order):
    first = start_payment(order=order)
    assert start_payment(order=order) == first, "an open payment is used again"
    Payment.objects.update(answer_by=timezone.now())
    page = shop.get(order.get_absolute_url()).text
    assert "respond in time" in page
    assert "Pay ¥" in page
    assert shop.get(page_of(first))["Location"] == order.get_absolute_url()
    assert time_out_payments() == 1
    assert time_out_payments() == 0
    assert Payment.objects.get().status == "timed_out"
    assert told(start_payment(order=order)) == "approved"
    assert status(order) == "paid"


def test_open_payment_is_used_again_after_the_clock_was_set_back(shop, order):
    told(start_payment(order=order), approved=False)
    Payment.objects.update(created_at=timezone.now() + timedelta(minutes=1))
    assert start_payment(order=order) == start_payment(order=order)
    assert "Payment declined" not in shop.get(order.get_absolute_url()).text


def test_payment_ends_while_its_order_can_be_paid(order, settings):
    settings.PAYMENT_TIMEOUT_SECONDS = 9999
    for left, asked_before in ((600, 60), (40, 20)):
        order.pay_by = timezone.now() + timedelta(seconds=left)
        early = (order.pay_by - start_payment(order=order).answer_by).total_seconds()
        assert asked_before - 5 < early <= asked_before
        Payment.objects.all().delete()
    settings.PAYMENT_TIMEOUT_SECONDS = 5
    assert start_payment(order=order).answer_by < timezone.now() + timedelta(seconds=6)


def time_out(payment: Payment) -> None:
    Payment.objects.update(answer_by=timezone.now())
    assert time_out_payments() == 1


BEFORE_THE_WEBHOOK = {
    "cancelled": (lambda order, payment: cancel_order(order=order), "refunding"),
    "expired": (lambda order, payment: expire_the_pending_order(), "refunding"),
    "timed out": (lambda order, payment: time_out(payment), "approved"),
    "declined": (lambda order, payment: told(payment, approved=False), "approved"),
}


@pytest.mark.parametrize("case", BEFORE_THE_WEBHOOK)
def test_money_pays_the_order_or_is_refunded(order, case):
    """It pays as long as the order can be paid, even after a decline or a timeout."""
    payment = start_payment(order=order)
    first, ends = BEFORE_THE_WEBHOOK[case]
    first(order, payment)
    before = status(order)
    assert told(payment) == told(payment) == told(payment, approved=False) == ends
    assert status(order) == ("paid" if ends == "approved" else before)
    assert refund_payments() == (ends == "refunding")
    assert refund_payments() == 0
    payment.refresh_from_db()
    assert (payment.refunded_at is not None) == (ends == "refunding")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "control"])
def test_two_concurrent_approvals_pay_once(order, monkeypatch, guarded):
    both = threading.Barrier(2)

    def check_then_act(order: Order, also: Sequence[Statement]) -> None:
        if status(order) != "pending":
            raise InvalidTransition
        both.wait(30)
        Order.objects.update(status="paid")
        commit(also)

    tries = [order.payments.create(amount=order.total, answer_by=order.pay_by) for _ in range(2)]
    if not guarded:
        monkeypatch.setattr(orders, "pay_order", check_then_act)
    meet = (lambda: both.wait(30)) if guarded else (lambda: None)
    ends = told_in_threads(tries, meet)
    assert status(order) == "paid"
    assert ends == ["approved", "refunding" if guarded else "approved"]


def test_payment_of_another_customer_is_not_found(order):
    payment = start_payment(order=order)
    other = signed_in()
    for reference in (payment.reference, "0" * 16):
        assert other.get(f"/payments/{reference}/").status_code == 404
        choice = {"choice": "approve"}
        assert other.post(f"/payments/{reference}/answer/", choice).status_code == 404
    assert Client().get(page_of(payment)).status_code == 302
    assert Payment.objects.get().status == "started"


@pytest.mark.parametrize("is_page", [True, False], ids=["page", "start"])
def test_calls_of_the_provider_are_limited(shop, order, monkeypatch, is_page):
    monkeypatch.setattr("shop.web.payments.PAYMENT_LIMIT", "2/hour")
    there, other = page_of(start_payment(order=order)), f"{order.get_absolute_url()}payment/"
    ask = partial(shop.get, there) if is_page else partial(shop.post, other)
    assert [ask().status_code for _ in range(3)] == [*[200 if is_page else 303] * 2, 429]
    assert "Retry-After" in ask()
    another = buy(a_sale(), customer=order.customer).order
    assert shop.post(f"{another.get_absolute_url()}payment/").status_code == 303


@pytest.mark.only("mysql")
def test_spellings_of_a_number_share_its_limit(shop, order, monkeypatch):
    """MariaDB finds each of them."""
    monkeypatch.setattr("shop.web.payments.PAYMENT_LIMIT", "1/hour")
    there, other = page_of(start_payment(order=order)), f"{order.get_absolute_url()}payment/"
    assert [shop.get(one).status_code for one in (there, there.lower())] == [200, 429]
    assert [shop.post(one).status_code for one in (other, other.lower())] == [303, 429]
