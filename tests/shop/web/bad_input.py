"""Malformed purchases, clients that send them, and a check that nothing changes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from django.test import Client

from inventory.models import Stock, StockMovement
from shop.models import CustomerQuota, Order, Sale, User
from tests.shop.making import a_sale

FORM = "application/x-www-form-urlencoded"
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


def buy_json(client: Client, sale: Sale, body: object, **options: object):
    """Send `body` as JSON."""
    sent = body if isinstance(body, str | bytes) else json.dumps(body)
    return client.post(f"/sales/{sale.slug}/buy/", sent, content_type=JSON, **options)


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


BODIES = {
    # content type, body, status
    "broken JSON": (JSON, b'{"quantity": 1', 400),
    "no JSON": (JSON, b" ", 400),
    "bad UTF-8": (JSON, b'{"idempotency_key": "\xff"}', 400),
    "top-level array": (JSON, b"[1]", 400),
    "nested": (JSON, b"[" * 100_000 + b"]" * 100_000, 400),
    "NaN": (JSON, b'{"quantity": NaN, "idempotency_key": "k"}', 400),
    "JSON name twice": (JSON, b'{"quantity": 1, "quantity": 2, "idempotency_key": "k"}', 400),
    "too large": (FORM, b"quantity=1&idempotency_key=k&x=" + b"x" * 2_700_000, 400),
    "JSON too large": (JSON, b'{"x": "' + b"x" * 2_700_000 + b'"}', 400),
    "too many fields": (FORM, b"&".join(b"x=1" for _ in range(1001)), 400),
    "not UTF-8 by declaration": (f"{FORM}; charset=utf-16", b"quantity=1", 400),
    "no boundary": ("multipart/form-data", b"--x", 400),
    "broken multipart": ("multipart/form-data; boundary=x", b"--x\r\nContent-Dispo", 400),
    "bad multipart": ("multipart/form-data; boundary=\xff", b"--x\r\n", 400),
    "quantity twice": (FORM, b"quantity=1&quantity=1&idempotency_key=k", 400),
    "key twice": (FORM, b"quantity=1&idempotency_key=k&idempotency_key=k", 400),
    "text": ("text/plain", b"quantity=1&idempotency_key=k", 415),
    "XML": ("application/xml", b"<quantity>1</quantity>", 415),
    "no type": ("", b"quantity=1&idempotency_key=k", 415),
}
QUANTITIES = [
    *("0", "-1", str(LIMIT + 1), "1.5", "", " ", " 1", "1 ", "+1", "01", "\0", "1\0", "9" * 20),
    *("1_0", "٣", "1.0", "1e0", "0x1", "one", "true", "NaN", "9" * 5000, "１"),
]
KEYS = ["", " ", "x" * 256, "a\0", "a\nb", "a\x7f", "a\x85b", "\u202e", None, 7, ["k"], "\ud800"]
