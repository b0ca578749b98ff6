"""The keys of pay and cancel, and what is not stored under them.

tests/shop/races/test_keys.py sends one many times at once; tests/locking/test_idempotency.py has
the faults of an attempt, and all keys that are refused.
"""

import pytest
from django.http import HttpResponse
from django.test import Client

from locking import locks
from locking.models import IdempotencyKey
from shop.models import Order
from tests.locking.scripted import unavailable
from tests.shop.making import a_sale, signed_in
from tests.shop.purchases import buy

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("guard")]

JSON = {"Accept": "application/json"}


@pytest.fixture
def order() -> Order:
    return buy(a_sale()).order


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


def test_key_belongs_to_one_step_order_and_customer() -> None:
    sale = a_sale()
    mine, other = buy(sale).order, buy(sale).order
    second = buy(sale, customer=mine.customer, key="l").order
    first = send(browser(mine), mine, "pay")
    assert first.status_code == 303
    assert said(send(browser(mine), mine, "pay")) == said(first)
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
