"""Pay and cancel count once for each key, and say the same every time (REQUIREMENTS U2)."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from django.db import OperationalError
from django.http import HttpResponse
from django.test import Client

from locking import locks
from locking.failpoints import armed, disarm
from locking.idempotency import IDEMPOTENCY_PREFIX, Attempt
from locking.models import IdempotencyKey
from shop.administration.audit import audit_sale
from shop.models import Order, Sale
from shop.orders import service as orders
from shop.purchase.place_order import place_order
from tests.locking.lock_worker import LockWorker
from tests.locking.scripted import unavailable
from tests.shop.making import a_customer, a_sale, fresh, signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("guard")]

JSON = {"Accept": "application/json"}
STEPS = [("pay", "paid"), ("cancel", "cancelled")]


@pytest.fixture
def sale() -> Sale:
    return a_sale()


def an_order(sale: Sale) -> Order:
    return place_order(customer=a_customer(), sale=fresh(sale), quantity=1, key="k").order


def browser(order: Order) -> Client:
    return signed_in(order.customer, raise_request_exception=False)


def send(client: Client, order: Order, verb: str, key: str = "k", **headers: str) -> HttpResponse:
    path = f"{order.get_absolute_url()}{verb}/"
    return client.post(path, {"idempotency_key": key}, headers=headers)


def said(response: HttpResponse) -> tuple[object, ...]:
    """All of an answer but the time at which it was given."""
    headers = {name: value for name, value in response.items() if name != "Expires"}
    return response.status_code, headers, response.content


@pytest.mark.parametrize("headers", [{}, JSON], ids=["page", "JSON"])
@pytest.mark.parametrize(("verb", "status"), STEPS)
def test_a_step_sent_again_is_answered_byte_for_byte(verb, status, headers, sale) -> None:
    order = an_order(sale)
    client = browser(order)
    first = send(client, order, verb, **headers)
    assert first.status_code == (200 if headers else 303)
    if headers:
        assert first.json()["status"] == status
    Order.objects.update(pay_by="2000-01-01T00:00Z")  # the answer would be another one now
    assert said(send(client, order, verb, **headers)) == said(first)
    by_header = client.post(
        f"{order.get_absolute_url()}{verb}/", headers={"Idempotency-Key": "k", **headers}
    )
    assert said(by_header) == said(first)
    # The control: with a key of its own it is another send, which comes too late.
    assert send(client, order, verb, "l", **headers).status_code == 409
    assert audit_sale(sale=sale).ok


def test_a_key_stands_for_one_step_of_one_order_of_one_customer(sale) -> None:
    mine, other = an_order(sale), an_order(sale)
    second = place_order(customer=mine.customer, sale=fresh(sale), quantity=1, key="l").order
    assert send(browser(mine), mine, "pay").status_code == 303
    assert send(browser(other), other, "pay").status_code == 303, "a key is the customer's own"
    for order, verb in ((mine, "cancel"), (second, "pay")):
        refused = send(browser(mine), order, verb, **JSON)
        assert (refused.status_code, refused.json()["error"]) == (422, "key_reused")
        assert 'role="alert"' in send(browser(mine), order, verb).text
    second.refresh_from_db()
    assert second.status == "pending"


def test_a_key_in_flight_is_409_and_may_be_sent_again(sale, settings) -> None:
    order = an_order(sale)
    client = browser(order)
    attempt = Attempt(user=order.customer_id, key="k", request=b"")
    conf = settings.LOCKS["redis"]
    with LockWorker(conf) as other, patch("locking.idempotency.WAIT", 0.01):
        assert other.acquire(IDEMPOTENCY_PREFIX + attempt.digest, timeout=0)["ok"]
        for headers in ({}, JSON):
            told = send(client, order, "pay", **headers)
            assert (told.status_code, told["Retry-After"]) == (409, "1")
        assert told.json()["error"] == "in_flight"
        page = send(client, order, "cancel")
        assert 'name="idempotency_key" value="k"' in page.text
        other.release(IDEMPOTENCY_PREFIX + attempt.digest)
        assert send(client, order, "pay").status_code == 303
    assert Order.objects.get().status == "paid"


def test_what_was_not_decided_is_not_kept(guard, sale) -> None:
    order = an_order(sale)
    client = browser(order)
    guard.then("acquire", unavailable)
    down = send(client, order, "cancel", **JSON)
    assert (down.status_code, down.json()["error"]) == (503, "store_down")
    assert down["Retry-After"]
    assert not IdempotencyKey.objects.exists()
    assert send(client, order, "cancel", **JSON).json()["status"] == "cancelled"


def test_a_commit_whose_reply_was_lost_is_found_again(sale) -> None:
    order = an_order(sale)
    client = browser(order)
    commit = orders.commit

    def lose_the_reply(statements) -> None:
        commit(statements)
        raise OperationalError("gone away")

    with patch.object(orders, "commit", lose_the_reply):
        assert send(client, order, "pay", **JSON).json()["status"] == "paid"


def test_paying_needs_no_lock_service(sale, settings) -> None:
    settings.LOCK_POLICY = {**settings.LOCK_POLICY, "BACKEND": "scripted"}
    order = an_order(sale)
    locks["scripted"].then("acquire", unavailable)
    first = send(browser(order), order, "pay")
    assert first.status_code == 303
    assert locks["scripted"].times("acquire")
    assert said(send(browser(order), order, "pay")) == said(first)


def test_the_page_keeps_the_key_of_what_may_be_sent_again(guard, sale) -> None:
    order = an_order(sale)
    guard.then("acquire", unavailable)
    page = send(browser(order), order, "cancel", "my-own-key").text
    assert page.count("my-own-key") == 1


def test_two_keys_that_pay_with_one_payment_are_not_both_told_that_they_paid(sale) -> None:
    """The second one's answer could not be given again: it was written by nobody."""
    order = an_order(sale)
    client = browser(order)

    def pay_first() -> None:
        disarm("payment.approve")
        assert send(client, order, "pay", "first", **JSON).status_code == 200

    with armed("payment.approve", pay_first):
        late = send(client, order, "pay", "second", **JSON)
    assert (late.status_code, late.json()["error"]) == (409, "wrong_step")
    assert send(client, order, "pay", "first", **JSON).status_code == 200
    assert IdempotencyKey.objects.count() == 1
