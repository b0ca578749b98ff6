"""FAULTS.md, "Bad input", at the views: the right status, never a 500, and no row changes."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import pytest

from shop.models import Order
from shop.orders.service import cancel_order
from tests.shop.making import a_customer, a_sale
from tests.shop.web.bad_input import (
    JSON,
    KEYS,
    LIMIT,
    buy,
    buy_json,
    client_of,
    everything,
    nothing_changes,
    sale,
    step,
)

__all__ = ["nothing_changes", "sale"]
pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]


# --- method and identity ----------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize("checks", [True, False], ids=["forgery checked", "not checked"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_purchase_allows_only_post(method, checks, li, sale):
    client = client_of(li, enforce_csrf_checks=checks)
    response = client.generic(method, f"/sales/{sale.slug}/buy/")
    assert response.status_code == 405
    assert response["Allow"] == "POST"


@pytest.mark.parametrize("path", ["/", "/products/", "/orders/", "/livez", "/sales/x/"])
def test_page_refuses_post(path, li):
    response = client_of(li, enforce_csrf_checks=True).post(path)
    assert (response.status_code, response["Allow"]) == (405, "GET, HEAD")


@pytest.mark.usefixtures("nothing_changes")
def test_purchase_without_csrf_token_is_403(li, sale):
    client = client_of(li, enforce_csrf_checks=True)
    client.get(f"/sales/{sale.slug}/")
    secret = client.cookies["csrftoken"].value
    for sent in ({}, {"csrfmiddlewaretoken": "x"}, {"csrfmiddlewaretoken": secret[::-1]}):
        response = buy(client, sale, **sent)
        assert response.status_code == 403
        assert "could not be verified" in response.text
    foreign = client.post(
        f"/sales/{sale.slug}/buy/",
        {"quantity": 1, "idempotency_key": "k", "csrfmiddlewaretoken": secret},
        headers={"Origin": "https://evil.example"},
    )
    assert foreign.status_code == 403
    assert buy_json(client, sale, {}).json()["error"] == "forgery"


def test_purchase_with_csrf_token_succeeds(li, sale):
    client = client_of(li, enforce_csrf_checks=True)
    client.get(f"/sales/{sale.slug}/")
    secret = client.cookies["csrftoken"].value
    assert buy(client, sale, csrfmiddlewaretoken=secret).status_code == 303
    replayed = buy_json(
        client,
        sale,
        {"quantity": 1, "idempotency_key": "k"},
        headers={"X-CSRFToken": secret},
    )
    assert replayed.status_code == 201


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize("checks", [True, False], ids=["forgery checked", "not checked"])
def test_anonymous_purchase_leads_to_sign_in(sale, checks):
    client = client_of(enforce_csrf_checks=checks)
    response = buy(client, sale)
    assert response.status_code == 302
    assert response["Location"] == f"/accounts/sign-in/?next=/sales/{sale.slug}/"
    response = buy_json(client, sale, {"quantity": 1, "idempotency_key": "k"})
    assert (response.status_code, response.json()["error"]) == (401, "sign_in")
    assert client.get("/orders/").status_code == 302
    assert client.get("/orders/", headers={"Accept": JSON}).status_code == 401


# --- bodies -----------------------------------------------------------------------------------


def test_query_string_is_not_the_form(li, sale):
    """A purchase is read from the body only."""
    query = urlencode({"quantity": 1, "idempotency_key": "k"})
    response = client_of(li).post(f"/sales/{sale.slug}/buy/?{query}", {})
    assert response.status_code == 400


# --- quantity and key -------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize(
    "quantity",
    ["0", "-1", str(LIMIT + 1), "1.5", "1.0", "1e0", "null", "true", "[1]", '"1"', "9" * 5000],
)
def test_bad_json_quantity_is_400(quantity, li, sale):
    body = f'{{"quantity": {quantity}, "idempotency_key": "k"}}'
    response = buy_json(client_of(li), sale, body)
    assert (response.status_code, response.json()["error"]) == (400, "bad_input")


def test_missing_quantity_is_400(li, sale):
    client = client_of(li)
    path = f"/sales/{sale.slug}/buy/"
    assert client.post(path, {"idempotency_key": "k"}).status_code == 400
    assert buy_json(client, sale, {"idempotency_key": "k"}).status_code == 400
    assert not Order.objects.exists()


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize("key", KEYS, ids=lambda key: ascii(key)[:12])
def test_bad_json_key_is_400(key, li, sale):
    body = {"quantity": 1, "idempotency_key": key}
    assert buy_json(client_of(li), sale, body).status_code == 400


def test_key_may_be_a_header(li, sale):
    client = client_of(li)
    path = f"/sales/{sale.slug}/buy/"
    first = client.post(path, {"quantity": 1}, headers={"Idempotency-Key": "k" * 255})
    assert first.status_code == 303
    again = buy_json(client, sale, {"quantity": 1}, headers={"Idempotency-Key": "k" * 255})
    assert again.status_code == 201
    assert again["Location"] == first["Location"]
    both = {"quantity": 1, "idempotency_key": "another"}
    assert client.post(path, both, headers={"Idempotency-Key": "k"}).status_code == 400
    assert Order.objects.count() == 1


def test_repeated_purchase_gets_the_same_response(li, sale):
    client, body = client_of(li), {"quantity": 2, "idempotency_key": "k"}
    first, again = (buy_json(client, sale, body) for _ in range(2))
    assert first.status_code == again.status_code == 201
    assert first.content == again.content
    step(client, first.json()["url"] + "pay/", "k")
    assert buy_json(client, sale, body).content == first.content
    other = buy_json(client, sale, {**body, "quantity": 1})
    assert (other.status_code, other.json()["error"]) == (422, "key_reused")
    assert buy(client_of(a_customer()), sale).status_code == 303, "a key is the customer's own"
    assert Order.objects.count() == 2


def test_unknown_fields_are_ignored(li, sale):
    extra = {"price": "0.01", "unit_price": "0.01", "customer": "1", "status": "paid"}
    buy(client_of(li), sale, **extra)
    order = Order.objects.get()
    assert (order.unit_price, order.customer, order.status) == (sale.price, li, "pending")


# --- the sale ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "code"),
    [
        ({"opens_in": 60}, "not_open"),
        ({"opens_in": -120, "lasts": 60}, "not_open"),
        ({"stock": 0}, "sold_out"),
    ],
    ids=["before", "ended", "sold out"],
)
def test_sale_that_is_not_open_is_409(shape, code, li):
    sale = a_sale(**shape)
    before = everything()
    response = buy_json(client_of(li), sale, {"quantity": 1, "idempotency_key": "k"})
    assert (response.status_code, response.json()["error"]) == (409, code)
    page = buy(client_of(li), sale, idempotency_key="kept")
    assert page.status_code == 409
    assert 'role="alert"' in page.text
    assert everything() == before


def test_purchase_above_the_limit_is_409(li, sale):
    client = client_of(li)
    assert buy(client, sale, quantity=LIMIT).status_code == 303
    before = everything()
    assert buy(client, sale, idempotency_key="k2").status_code == 409
    response = buy_json(client, sale, {"quantity": 1, "idempotency_key": "k3"})
    assert (response.status_code, response.json()["error"]) == (409, "limit")
    assert everything() == before


@pytest.mark.parametrize(
    "path",
    [
        "/sales/none/",
        "/sales/none/stock/",
        "/products/none/",
        "/orders/none/",
        "/nowhere",
        "/sales/%00/",
        "/sales/a%00b/",
        "/products/%00/",
        "/orders/%00/",
        "/%ff",
        "/sales/%2e%2e/",
        "/" + "x" * 5000,
    ],
)
def test_unknown_page_is_404(path, li):
    for accept in ("text/html", JSON):
        response = client_of(li).get(path, headers={"Accept": accept})
        assert response.status_code == 404
        assert response["Content-Type"].startswith(accept)


@pytest.mark.usefixtures("nothing_changes")
def test_purchase_of_unknown_sale_is_404(li):
    assert client_of(li).post("/sales/none/buy/").status_code == 404


@pytest.mark.parametrize(
    "query", ["q=%00", "q=%ff", "q=%25_", "page=0", "page=x", "q=" + "x" * 999]
)
def test_malformed_search_is_answered(query, li):
    a_sale()
    assert client_of(li).get(f"/products/?{query}").status_code == 200
    assert client_of(li).get(f"/products/?page={'9' * 5000}").status_code == 200


# --- orders -----------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["text/html", JSON])
def test_foreign_order_looks_like_a_missing_one(li, sale, accept):
    buy(client_of(li), sale)
    number = Order.objects.get().number
    other = client_of(a_customer())
    before = everything()
    for verb in ("", "pay/", "cancel/"):
        send = other.post if verb else other.get
        theirs, none = (
            send(f"/orders/{which}/{verb}", headers={"Accept": accept})
            for which in (number, "0" * 16)
        )
        assert theirs.status_code == none.status_code == 404
        assert _without_secret(theirs.text, number) == _without_secret(none.text, "0" * 16)
    assert everything() == before


def _without_secret(page: str, number: str) -> list[str]:
    """The page without its CSRF tokens, which differ on every page, and its own address."""
    lines = page.replace(number, "").splitlines()
    return [line for line in lines if "csrfmiddlewaretoken" not in line]


def test_order_is_paid_or_cancelled_once(li, sale):
    client = client_of(li)
    buy(client, sale)
    buy(client, sale, idempotency_key="k2")
    cancelled, paid = (order.get_absolute_url() for order in Order.objects.order_by("pk"))
    assert step(client, paid + "pay/", "k").status_code == 303
    cancel_order(order=Order.objects.order_by("pk")[0])
    before = everything()
    for page in (paid, cancelled):
        for verb in ("pay/", "cancel/"):
            assert step(client, page + verb, "k2").status_code == 409
            refused = step(client, page + verb, "k3", headers={"Accept": JSON})
            assert (refused.status_code, refused.json()["error"]) == (409, "wrong_step")
            assert client.get(page + verb).status_code == 405
    assert everything() == before


@pytest.mark.parametrize("verb", ["pay/", "cancel/"])
@pytest.mark.parametrize("key", KEYS, ids=lambda key: ascii(key)[:12])
def test_bad_key_of_an_order_change_is_refused(key, verb, li, sale):
    client = client_of(li)
    buy(client, sale)
    path = Order.objects.get().get_absolute_url() + verb
    before = everything()
    as_json = client.post(path, json.dumps({"idempotency_key": key}), content_type=JSON)
    assert as_json.status_code == 400
    if isinstance(key, str) and key != "\ud800":
        assert step(client, path, key).status_code == 400
    assert client.post(path, {"idempotency_key": ["a", "a"]}).status_code == 400
    assert step(client, path, "a", headers={"Idempotency-Key": "b"}).status_code == 400
    assert client.post(path, b"x", content_type="text/plain").status_code == 415
    assert everything() == before


@pytest.mark.parametrize("verb", ["pay/", "cancel/"])
def test_order_change_without_key_happens_once(verb, li, sale):
    client = client_of(li)
    buy(client, sale)
    path = Order.objects.get().get_absolute_url() + verb
    assert client.post(path).status_code == 303
    before = everything()
    assert client.post(path).status_code == 409
    assert everything() == before
