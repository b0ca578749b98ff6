"""The OpenAPI description and the views agree: each path, each status and each body."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jsonschema
import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.urls import get_resolver

from locking import locks
from shop.models import Order
from shop.payments.service import start_payment
from shop.sales.stock_lock import lock_name
from shop.web import api
from tests.locking.calls import held_by_another
from tests.shop.making import a_sale, signed_in
from tests.shop.queued import consume

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]

DESCRIPTION = json.loads(api.DESCRIPTION.read_text())
BUY = "/sales/{slug}/buy/"
JSON = {"Accept": "application/json"}
Case = tuple[str, str, int]
"""Path as described, method and status."""


def described() -> set[Case]:
    return {
        (path, method, int(status))
        for path, methods in DESCRIPTION["paths"].items()
        for method, operation in methods.items()
        for status in operation["responses"]
        if status != "default"
    }


def check(path: str, method: str, response: Any) -> Case:
    """Raise if body or headers are not as described; return what was compared."""
    responses = DESCRIPTION["paths"][path][method]["responses"]
    found = responses.get(str(response.status_code), responses["default"])
    if "$ref" in found:
        found = DESCRIPTION["components"]["responses"][found["$ref"].rpartition("/")[2]]
    ((kind, content),) = found["content"].items()
    assert response["Content-Type"] == kind, (path, response.status_code)
    assert {*found.get("headers", {})} <= {*response.headers}
    schema = {**content["schema"], "components": DESCRIPTION["components"]}
    jsonschema.Draft202012Validator(schema).validate(response.json())
    return path, method, response.status_code


@contextmanager
def without_table(name: str) -> Iterator[None]:
    """Make every query of the table fail; nothing else remembers its rows."""
    cache.clear()
    rename = "ALTER TABLE {} RENAME TO {}".format
    with connection.cursor() as cursor:
        cursor.execute(rename(name, f"{name}_away"))
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(rename(f"{name}_away", name))


class Visitor:
    """Sends requests, and remembers what it has compared with the description."""

    def __init__(self) -> None:
        self.seen: set[Case] = set()
        self.client = signed_in(headers=JSON, raise_request_exception=False)

    def ask(self, path: str, url: str, *, by: Client | None = None, method: str = "get") -> Any:
        """Send a request to an operation with GET or with another method."""
        response = getattr(by or self.client, method)(url)
        self.seen.add(check(path, next(iter(DESCRIPTION["paths"][path])), response))
        return response

    def buy(self, sale: Any, quantity: Any = 1, *, by: Client | None = None, **sent: Any) -> Any:
        url = BUY.replace("{slug}", getattr(sale, "slug", sale))
        form = {"quantity": quantity, "idempotency_key": "k", **sent}
        options = {"content_type": "text/xml"} if sent.get("xml") else {}
        response = (by or self.client).post(url, "<a/>" if sent.get("xml") else form, **options)
        self.seen.add(check(BUY, "post", response))
        return response


@pytest.fixture
def visitor(in_force) -> Visitor:
    return Visitor()


def test_every_described_response_is_given_and_every_given_one_is_described(visitor, settings):
    stranger = Client(headers=JSON)
    direct, queued = a_sale(limit=2), a_sale(limit=2, fulfilment="queued")
    order = visitor.buy(direct).json()
    reservation = visitor.buy(queued).json()
    ORDER, RESERVATION = "/orders/{number}/", "/reservations/{token}/"
    assert visitor.ask(RESERVATION, reservation["url"]).json()["status"] == "waiting"
    assert consume() == 1
    assert visitor.ask(RESERVATION, reservation["url"]).json()["status"] == "won"
    assert visitor.ask(ORDER, order["url"]).json() == order | {"status": "pending", "payment": None}
    start_payment(order=Order.objects.get(number=order["number"]))
    assert visitor.ask(ORDER, order["url"]).json()["payment"]["status"] == "started"

    listed = visitor.ask("/api/sales/", "/api/sales/").json()["sales"]
    assert {one["slug"] for one in listed} == {direct.slug, queued.slug}
    stock = visitor.ask("/api/sales/{slug}/stock/", f"/api/sales/{direct.slug}/stock/").json()
    assert (stock["initial"], stock["left"] <= 10) == (10, True)

    urls = {
        "/api/sales/": ("/api/sales/", "shop_sale"),
        "/api/sales/{slug}/stock/": (f"/api/sales/{direct.slug}/stock/", "shop_sale"),
        ORDER: (order["url"], "shop_order"),
        RESERVATION: (reservation["url"], "shop_sale"),
    }
    for path, (url, table) in urls.items():
        visitor.ask(path, url, method="delete")
        if "{" in path:
            visitor.ask(path, re.sub(r"(sales|orders|reservations)/[^/]+", r"\1/none", url))
        if path in (ORDER, RESERVATION):
            visitor.ask(path, url, by=stranger)
        with without_table(table):
            visitor.ask(path, url)

    visitor.buy(direct, by=stranger)
    checked = Client(headers=JSON, enforce_csrf_checks=True)
    checked.cookies = visitor.client.cookies
    for one in [("none", 1), (direct, 0), (direct, 2)]:
        visitor.buy(*one)
    visitor.buy(direct, by=checked)
    visitor.buy(direct, xml=True)
    visitor.buy(direct, 2, idempotency_key="l")
    visitor.seen.add(check(BUY, "post", visitor.client.get(BUY.replace("{slug}", direct.slug))))
    with held_by_another(locks["process"], lock_name(direct.pk)):
        settings.LOCK_TIMEOUT = 0.01
        visitor.buy(direct, idempotency_key="m")
    settings.BUY_LIMIT = "1/hour"
    for _ in range(2):
        visitor.buy(direct)
    assert described() - visitor.seen == set()
    assert visitor.seen - described() == set()


def test_every_url_of_the_api_is_described() -> None:
    served = {
        "/" + re.sub(r"<\w+:(\w+)>", r"{\1}", str(one.pattern))
        for one in get_resolver().url_patterns
        if str(one.pattern).startswith("api/")
    }
    assert served - {"/api/openapi.json"} == {
        path for path in DESCRIPTION["paths"] if path.startswith("/api/")
    }
    assert len(served) > 1


def test_description_is_served(client) -> None:
    response = client.get("/api/openapi.json")
    assert json.loads(b"".join(response.streaming_content)) == DESCRIPTION


FAILING = {
    "/api/sales/": "shop.web.api.get_cached_home",
    "/orders/{number}/": "shop.web.orders.get_order",
}


@pytest.mark.parametrize("path", FAILING)
def test_bug_is_a_problem_for_programs(path, visitor, monkeypatch, caplog) -> None:
    """It was a page of HTML."""
    monkeypatch.setattr(FAILING[path], None)
    response = visitor.ask(path, path.replace("{number}", "x"))
    assert (response.status_code, response.json()["error"]) == (500, "failed")
    assert "TypeError" in caplog.text
