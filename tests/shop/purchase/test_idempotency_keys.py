"""Pay and cancel count once for each key, with equal responses.

tests/locking/test_idempotency.py has the faults of an attempt, and all keys that are refused.
"""

import pytest
from django.http import HttpResponse
from django.test import Client

from locking import locks
from locking.models import IdempotencyKey
from shop.administration.audit import audit_sale
from shop.models import Order, Sale
from tests.locking.scripted import unavailable
from tests.shop.making import a_sale, signed_in
from tests.shop.purchases import buy

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("guard")]

JSON = {"Accept": "application/json"}
STEPS = [("pay", "paid"), ("cancel", "cancelled")]


@pytest.fixture
def sale() -> Sale:
    return a_sale()


@pytest.fixture
def order(sale: Sale) -> Order:
    return buy(sale).order


def browser(order: Order) -> Client:
    return signed_in(order.customer, raise_request_exception=False)


def send(client: Client, order: Order, verb: str, key: str = "k", **headers: str) -> HttpResponse:
    path = f"{order.get_absolute_url()}{verb}/"
    return client.post(path, {"idempotency_key": key}, headers=headers)


def said(response: HttpResponse) -> tuple[object, ...]:
    """Return a response without its date and its request id."""
    own = ("Expires", "X-Request-ID")
    headers = {name: value for name, value in response.items() if name not in own}
    return response.status_code, headers, response.content


@pytest.mark.parametrize("headers", [{}, JSON], ids=["page", "JSON"])
@pytest.mark.parametrize(("verb", "status"), STEPS)
def test_repeated_step_gets_an_equal_response(verb, status, headers, sale, order) -> None:
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


def test_key_belongs_to_one_step_order_and_customer(sale) -> None:
    mine, other = buy(sale).order, buy(sale).order
    second = buy(sale, customer=mine.customer, key="l").order
    assert send(browser(mine), mine, "pay").status_code == 303
    assert send(browser(other), other, "pay").status_code == 303, "a key is the customer's own"
    for order, verb in ((mine, "cancel"), (second, "pay")):
        refused = send(browser(mine), order, verb, **JSON)
        assert (refused.status_code, refused.json()["error"]) == (422, "key_reused")
        page = send(browser(mine), order, verb).text
        assert "Open the order again to see its state" in page
        assert "to place another order" not in page
    second.refresh_from_db()
    assert second.status == "pending"


def test_undecided_response_is_not_stored(guard, order) -> None:
    client = browser(order)
    guard.then("acquire", unavailable)
    down = send(client, order, "cancel", **JSON)
    assert (down.status_code, down.json()["error"]) == (503, "store_down")
    assert down["Retry-After"]
    guard.then("acquire", unavailable)
    assert send(client, order, "cancel", "my-own-key").text.count("my-own-key") == 1
    assert not IdempotencyKey.objects.exists()
    assert send(client, order, "cancel", **JSON).json()["status"] == "cancelled"


def test_paying_needs_no_lock_service(settings, order) -> None:
    settings.LOCK_POLICY = {**settings.LOCK_POLICY, "BACKEND": "scripted"}
    locks["scripted"].backend.then("acquire", unavailable)
    first = send(browser(order), order, "pay")
    assert first.status_code == 303
    assert locks["scripted"].backend.times("acquire")
    assert said(send(browser(order), order, "pay")) == said(first)
