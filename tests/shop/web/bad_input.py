"""Malformed values, clients that send them, and a check that nothing changes."""

from collections.abc import Iterator

import pytest
from django.test import Client

from inventory.models import Stock, StockMovement
from shop.models import CustomerQuota, Order, Sale, User
from tests.shop.making import a_sale

JSON = "application/json"
LIMIT = 5


@pytest.fixture
def sale() -> Sale:
    return a_sale(limit=LIMIT)


def client_of(user: User | None = None, **options: object) -> Client:
    """Return a client, signed in if a user is given, that renders error pages."""
    client = Client(raise_request_exception=False, **options)
    if user:
        client.force_login(user)
    return client


def buy(client: Client, sale: Sale, **fields: object):
    """Send the form as a browser does."""
    form = {"quantity": "1", "idempotency_key": "k", **fields}
    return client.post(f"/sales/{sale.slug}/buy/", form)


def step(client: Client, path: str, key: object, **options: object):
    """Pay or cancel an order."""
    return client.post(path, {"idempotency_key": key}, **options)


def everything() -> tuple[object, ...]:
    """Return everything that malformed input could change."""
    rows = [model.objects.count() for model in (Order, StockMovement, CustomerQuota, User)]
    return (
        *rows,
        *Stock.objects.order_by("pk").values_list("pk", "quantity", "fence_token"),
        *Order.objects.order_by("pk").values_list("pk", "status"),
    )


@pytest.fixture
def nothing_changes(li: User, sale: Sale) -> Iterator[None]:
    before = everything()
    yield
    assert everything() == before


QUANTITIES = [
    *("0", "-1", str(LIMIT + 1), "1.5", "", " ", " 1", "1 ", "+1", "01", "\0", "1\0", "9" * 20),
    *("1_0", "٣", "1.0", "1e0", "0x1", "one", "true", "NaN", "9" * 5000, "１"),
]
KEYS = ["", " ", "x" * 256, "a\0", "a\nb", "a\x7f", "a\x85b", "\u202e", None, 7, ["k"], "\ud800"]
