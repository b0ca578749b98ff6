"""FAULTS.md, "Bad input": forms; the right code, never a 500, and nothing has changed."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import pytest

from shop.models import Order
from shop.orders.service import cancel_order
from tests.shop.making import a_customer, a_sale
from tests.shop.web.bad_input import (
    BODIES,
    JSON,
    KEYS,
    LIMIT,
    QUANTITIES,
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
def test_a_purchase_is_a_post(method, checks, li, sale):
    client = client_of(li, enforce_csrf_checks=checks)
    response = client.generic(method, f"/sales/{sale.slug}/buy/")
    assert response.status_code == 405
    assert response["Allow"] == "POST"


@pytest.mark.parametrize("path", ["/", "/products/", "/orders/", "/livez", "/sales/x/"])
def test_a_page_takes_no_post(path, li):
    response = client_of(li, enforce_csrf_checks=True).post(path)
    assert (response.status_code, response["Allow"]) == (405, "GET, HEAD")


@pytest.mark.usefixtures("nothing_changes")
def test_forgery(li, sale):
    client = client_of(li, enforce_csrf_checks=True)
    client.get(f"/sales/{sale.slug}/")
    secret = client.cookies["csrftoken"].value
    for sent in ({}, {"csrfmiddlewaretoken": "x"}, {"csrfmiddlewaretoken": secret[::-1]}):
        response = buy(client, sale, **sent)
        assert response.status_code == 403
        assert "did not come from our pages" in response.text
    foreign = client.post(
        f"/sales/{sale.slug}/buy/",
        {"quantity": 1, "idempotency_key": "k", "csrfmiddlewaretoken": secret},
        headers={"Origin": "https://evil.example"},
    )
    assert foreign.status_code == 403
    assert buy_json(client, sale, {}).json()["error"] == "forgery"


def test_the_forms_secret_opens(li, sale):
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
def test_strangers_sign_in_first(sale, checks):
    client = client_of(enforce_csrf_checks=checks)
    response = buy(client, sale)
    assert response.status_code == 302
    assert response["Location"] == f"/accounts/sign-in/?next=/sales/{sale.slug}/"
    response = buy_json(client, sale, {"quantity": 1, "idempotency_key": "k"})
    assert (response.status_code, response.json()["error"]) == (401, "sign_in")
    assert client.get("/orders/").status_code == 302
    assert client.get("/orders/", headers={"Accept": JSON}).status_code == 401


# --- bodies -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize("checks", [True, False], ids=["forgery checked", "not checked"])
@pytest.mark.parametrize("case", BODIES)
def test_bodies(case, checks, li, sale):
    kind, body, status = BODIES[case]
    client = client_of(li, enforce_csrf_checks=checks)
    client.get("/")  # for the secret
    for accept in ("text/html", JSON):
        response = client.generic(
            "POST",
            f"/sales/{sale.slug}/buy/",
            body,
            content_type=kind,
            headers={"Accept": accept, "X-CSRFToken": client.cookies["csrftoken"].value},
        )
        assert response.status_code == status
        assert response["Content-Type"].startswith(accept)
        assert "Traceback" not in response.text


def test_the_body_is_no_query(li, sale):
    """What stands behind the question mark is not the form."""
    query = urlencode({"quantity": 1, "idempotency_key": "k"})
    response = client_of(li).post(f"/sales/{sale.slug}/buy/?{query}", {})
    assert response.status_code == 400


# --- quantity and key -------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda text: ascii(text)[:12])
def test_quantities(quantity, li, sale):
    client = client_of(li)
    assert buy(client, sale, quantity=quantity).status_code == 400
    body = {"quantity": quantity, "idempotency_key": "k"}
    assert buy_json(client, sale, body).status_code == 400


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize(
    "quantity", ["0", "-1", str(LIMIT + 1), "1.5", "1.0", "1e0", "null", "true", "[1]", "9" * 5000]
)
def test_quantities_in_json(quantity, li, sale):
    body = f'{{"quantity": {quantity}, "idempotency_key": "k"}}'
    response = buy_json(client_of(li), sale, body)
    assert (response.status_code, response.json()["error"]) == (400, "bad_input")


def test_no_quantity_at_all(li, sale):
    client = client_of(li)
    path = f"/sales/{sale.slug}/buy/"
    assert client.post(path, {"idempotency_key": "k"}).status_code == 400
    assert buy_json(client, sale, {"idempotency_key": "k"}).status_code == 400
    assert not Order.objects.exists()


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize("key", KEYS, ids=lambda key: ascii(key)[:12])
def test_keys(key, li, sale):
    client = client_of(li)
    assert buy_json(client, sale, {"quantity": 1, "idempotency_key": key}).status_code == 400
    if isinstance(key, str) and key != "\ud800":
        assert buy(client, sale, idempotency_key=key).status_code == 400


def test_the_key_may_be_a_header(li, sale):
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


def test_sent_twice_is_answered_alike(li, sale):
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


def test_what_nobody_asked_for_is_ignored(li, sale):
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
def test_sales_that_cannot_be_bought(shape, code, li):
    sale = a_sale(**shape)
    before = everything()
    response = buy_json(client_of(li), sale, {"quantity": 1, "idempotency_key": "k"})
    assert (response.status_code, response.json()["error"]) == (409, code)
    page = buy(client_of(li), sale, idempotency_key="kept")
    assert page.status_code == 409
    assert 'role="alert"' in page.text
    assert everything() == before


def test_over_the_limit(li, sale):
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
def test_what_does_not_exist(path, li):
    for accept in ("text/html", JSON):
        response = client_of(li).get(path, headers={"Accept": accept})
        assert response.status_code == 404
        assert response["Content-Type"].startswith(accept)


@pytest.mark.usefixtures("nothing_changes")
def test_buying_what_does_not_exist(li):
    assert client_of(li).post("/sales/none/buy/").status_code == 404


@pytest.mark.parametrize(
    "query", ["q=%00", "q=%ff", "q=%25_", "page=0", "page=x", "q=" + "x" * 999]
)
def test_odd_searches(query, li):
    a_sale()
    assert client_of(li).get(f"/products/?{query}").status_code == 200
    assert client_of(li).get(f"/products/?page={'9' * 5000}").status_code == 200


# --- orders -----------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["text/html", JSON])
def test_another_customers_order_is_like_none(li, sale, accept):
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


def test_an_order_is_paid_or_cancelled_once(li, sale):
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
def test_keys_of_steps(key, verb, li, sale):
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
def test_a_step_without_a_key_is_taken_once(verb, li, sale):
    client = client_of(li)
    buy(client, sale)
    path = Order.objects.get().get_absolute_url() + verb
    assert client.post(path).status_code == 303
    before = everything()
    assert client.post(path).status_code == 409
    assert everything() == before
