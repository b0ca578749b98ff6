"""Payments through Stripe, on a real process that stands in for it."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal

import pytest
import stripe
from django.core.exceptions import ValidationError
from django.test import Client
from django.utils import timezone
from django.utils.translation import override

from inventory.money import check_decimals, minor_units, with_sign
from shop.errors import Overloaded
from shop.models import Order, Payment, User
from shop.orders.service import cancel_order
from shop.payments.providers import ProviderUnavailable, make_provider
from shop.payments.service import (
    oldest_refund_seconds,
    refund_payments,
    start_payment,
    time_out_payments,
)
from shop.platform.metrics import PAYMENT_MISMATCHES
from tests.shop.making import a_sale
from tests.shop.payments.stripe_server import DECLINED, PUBLIC, SECRET, LocalStripe, in_use
from tests.shop.purchases import buy

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("in_force")]


@pytest.fixture(scope="module")
def server() -> Iterator[LocalStripe]:
    with LocalStripe() as server:
        yield server


@pytest.fixture(autouse=True)
def local(server: LocalStripe) -> Iterator[LocalStripe]:
    with in_use(server):
        yield server


@pytest.fixture
def order(li: User) -> Order:
    return buy(a_sale(), customer=li, quantity=2).order


@pytest.fixture
def payment(order: Order) -> Payment:
    return start_payment(order=order)


def states(payment: Payment) -> tuple[str, str]:
    return (
        Order.objects.get(pk=payment.order_id).status,
        Payment.objects.get(pk=payment.pk).status,
    )


def event_of(local: LocalStripe, payment: Payment, kind: str = "succeeded") -> dict:
    events = local.get("/v1/events", type=f"payment_intent.{kind}", limit=1000)["data"]
    (found,) = (one for one in events if one["data"]["object"]["id"] == payment.provider_id)
    return found


def send(event: object, *, secret: str = SECRET, age: int = 0, signed: str = "") -> tuple[int, str]:
    body = event if isinstance(event, str) else json.dumps(event)
    header = signed or stripe.WebhookSignature.generate_signature_header(
        body, secret, int(time.time()) - age
    )
    reply = Client(enforce_csrf_checks=True).post(
        "/payments/webhook/",
        body,
        content_type="application/json",
        headers={"Stripe-Signature": header},
    )
    return reply.status_code, reply.json().get("status")


def mismatches() -> float:
    return next(iter(PAYMENT_MISMATCHES.collect())).samples[0].value


def test_webhook_pays_the_order_once(shop, local, order) -> None:
    there = shop.post(f"{order.get_absolute_url()}payment/")["Location"]
    payment = order.payments.get()
    intent = local.get(f"/v1/payment_intents/{payment.provider_id}")
    assert (intent["amount"], intent["currency"]) == (1980, "cny")
    page = shop.get(there)
    for expected in (PUBLIC, intent["client_secret"], local.settings["STRIPE_SCRIPT_URL"]):
        assert expected in page.text
    assert f"script-src 'self' {local.url}" in page.headers["Content-Security-Policy"]
    assert f'payment=(self "{local.url}")' in page.headers["Permissions-Policy"]
    assert local.url not in shop.get("/").headers["Content-Security-Policy"]
    assert local.pay(payment) == "succeeded"
    event = event_of(local, payment)
    assert send(event) == send(event) == (200, "approved")
    assert states(payment) == ("paid", "approved")
    assert refund_payments() == 0
    assert local.refunds(payment) == []


@pytest.mark.parametrize("earlier", [[], [500, 300], [1980]])
def test_refund_returns_what_the_dashboard_has_not(local, payment, earlier) -> None:
    local.pay(payment)
    for amount in earlier:
        local.post("/v1/refunds", {"payment_intent": payment.provider_id, "amount": amount})
    Payment.objects.update(status="refunding", refund_started_at=timezone.now())
    assert (refund_payments(), refund_payments()) == (1, 0)
    assert sum(local.refunds(payment)) == 1980
    assert len(local.refunds(payment)) == len(earlier) + (earlier != [1980])


def test_customer_who_returns_before_the_webhook_has_paid(shop, local, payment) -> None:
    local.pay(payment)
    page = f"/payments/{payment.reference}/"
    assert shop.get(page)["Location"] == payment.order.get_absolute_url()
    assert states(payment) == ("paid", "approved")
    assert send(event_of(local, payment)) == (200, "approved")


def test_declined_card_leaves_the_payment_open(shop, local, payment) -> None:
    assert local.pay(payment, DECLINED) == "Your card was declined."
    assert "Your card was declined." in shop.get(f"/payments/{payment.reference}/").text
    local.pay(payment)
    assert send(event_of(local, payment)) == (200, "approved")
    assert send(event_of(local, payment, "payment_failed")) == (200, "ignored"), "out of order"
    assert states(payment) == ("paid", "approved")


@pytest.mark.parametrize(("is_paid", "ends"), [(True, "approved"), (False, "timed_out")])
def test_provider_is_asked_when_no_webhook_came(local, payment, is_paid, ends) -> None:
    if is_paid:
        local.pay(payment)
    assert time_out_payments() == 0
    Payment.objects.update(answer_by=timezone.now())
    assert (time_out_payments(), time_out_payments()) == (1, 0)
    assert states(payment) == ("paid" if is_paid else "pending", ends)
    if not is_paid:
        assert local.pay(payment) == "This payment is canceled."


@pytest.mark.parametrize("told", ["webhook", "asked"])
def test_money_for_a_closed_order_is_refunded_once(local, payment, told) -> None:
    cancel_order(order=payment.order)
    local.pay(payment)
    if told == "asked":
        Payment.objects.update(answer_by=timezone.now())
        time_out_payments()
    assert send(event_of(local, payment)) == (200, "refunding")
    Payment.objects.update(refund_started_at=timezone.now() - timedelta(hours=1))
    assert 3600 <= oldest_refund_seconds() < 3700
    assert (refund_payments(), refund_payments()) == (1, 0)
    Payment.objects.update(status="refunding")  # the process ended before it wrote the reply
    assert refund_payments() == 1
    assert local.refunds(payment) == [1980]
    assert send(event_of(local, payment)) == (200, "refunded")


@pytest.mark.parametrize("change", [{"amount": 1979}, {"currency": "usd"}])
def test_wrong_amount_is_refused_and_alarms(local, payment, change, caplog) -> None:
    local.pay(payment)
    event, before = event_of(local, payment), mismatches()
    event["data"]["object"] |= change
    assert send(event)[0] == 400
    assert states(payment) == ("pending", "started")
    assert mismatches() == before + 1
    assert payment.reference in caplog.text


def test_forged_stale_and_malformed_webhooks_change_nothing(local, payment) -> None:
    local.pay(payment)
    event = event_of(local, payment)
    for options in (
        {"secret": "whsec_other"},
        {"age": 301},
        {"signed": "t=1,v1=ü"},
        {"signed": "x"},
    ):
        assert send(event, **options)[0] == 403, options
    for body in ("[1]", "{", "{}", '{"type": "payment_intent.succeeded", "data": {}}'):
        assert send(body)[0] == 400, body
    foreign = json.loads(json.dumps(event))
    foreign["data"]["object"]["metadata"] = {}
    assert send(foreign) == (200, "ignored"), "of another program on the same account"
    unknown = json.loads(json.dumps(event))
    unknown["data"]["object"]["metadata"]["reference"] = "0" * 16
    assert send(unknown)[0] == 404
    assert states(payment) == ("pending", "started")
    assert send(event, age=200) == (200, "approved"), "control"


def test_silent_provider_costs_a_bounded_wait(shop, local, payment, settings) -> None:
    """The order is kept; a refund is made as soon as the provider responds again."""
    settings.STRIPE_TIMEOUT, settings.WEB_THREADS = 0.3, 2
    make_provider.cache_clear()
    local.pay(payment)
    cancel_order(order=payment.order)
    send(event_of(local, payment))
    other = buy(a_sale(), customer=payment.order.customer).order
    local.pause()
    try:
        began = time.monotonic()
        reply = shop.post(f"{other.get_absolute_url()}payment/")
        assert (reply.status_code, reply["Retry-After"]) == (503, "2")
        assert "payment provider isn" in reply.text
        assert "Pay ¥9.90 now" in reply.text
        assert refund_payments() == time_out_payments() == 0
        assert time.monotonic() - began < 60
        meeting = threading.Barrier(4)
        with ThreadPoolExecutor(4) as pool:
            told = list(pool.map(lambda _: refund_at(meeting, payment), range(4)))
        assert {ProviderUnavailable, Overloaded} == set(told), "one waits, the others do not"
    finally:
        local.resume()
    settings.STRIPE_TIMEOUT = 20.0
    make_provider.cache_clear()
    assert states(payment) == ("cancelled", "refunding")
    assert refund_payments() == 1
    assert shop.post(f"{other.get_absolute_url()}payment/").status_code == 303
    assert local.refunds(payment) == [1980]


def refund_at(meeting: threading.Barrier, payment: Payment) -> type[Exception]:
    meeting.wait(30)
    with pytest.raises((Overloaded, ProviderUnavailable)) as refused:
        make_provider("shop.payments.stripe.Stripe").refund(payment)
    return refused.type


def test_payment_unknown_to_the_provider_delays_no_other(local, payment, caplog) -> None:
    payments = [payment, *(payment.order.payments.create(amount=1, answer_by=payment.answer_by),)]
    Payment.objects.filter(pk=payments[1].pk).update(provider_id="pi_gone")
    Payment.objects.update(status="refunding", refund_started_at=timezone.now())
    local.pay(payment)
    assert refund_payments() == 1
    assert payments[1].reference in caplog.text
    Payment.objects.update(status="started", answer_by=timezone.now())
    assert time_out_payments() == 2


@pytest.mark.parametrize(
    ("amount", "currency", "units", "shown"),
    [
        ("19.90", "CNY", 1990, "¥19.90"),
        ("3999.00", "USD", 399900, "$3,999"),
        ("3999.00", "JPY", 3999, "¥3,999"),
        ("0.05", "EUR", 5, "€0.05"),
    ],
)
def test_amounts_in_each_currency(amount, currency, units, shown) -> None:
    assert minor_units(Decimal(amount), currency) == units
    for language in ("en", "zh-hans"):
        with override(language):
            assert with_sign(Decimal(amount), currency) == shown


def test_price_that_nobody_can_pay_is_refused(settings) -> None:
    settings.CURRENCY = "JPY"
    check_decimals(Decimal("10.00"))
    with pytest.raises(ValidationError, match="JPY"):
        check_decimals(Decimal("9.90"))
