"""FAULTS.md, "Bad input": the right code, never a 500, and nothing has changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from django.core.cache import cache
from django.test import Client

from inventory.models import Stock, StockMovement
from locking import policy
from shop.models import Allowance, Order, Sale, User
from shop.orders import cancel_order
from tests.shop.making import a_customer, a_sale, put_in_force

pytestmark = [pytest.mark.django_db, pytest.mark.stores]

FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
LIMIT = 5


@pytest.fixture(autouse=True)
def _in_force() -> Iterator[None]:
    put_in_force("process")
    cache.clear()  # also what the throttle has counted
    yield
    policy.forget()


@pytest.fixture
def sale() -> Sale:
    return a_sale(limit=LIMIT)


@pytest.fixture
def li() -> User:
    return a_customer()


def client_of(user: User | None = None, **options: object) -> Client:
    client = Client(raise_request_exception=False, **options)
    if user:
        client.force_login(user)
    return client


def buy(client: Client, sale: Sale, **fields: object):
    form = {"quantity": "1", "idempotency_key": "k", **fields}
    return client.post(f"/sales/{sale.slug}/buy/", form)


def buy_json(client: Client, sale: Sale, body: object, **options: object):
    sent = body if isinstance(body, str | bytes) else json.dumps(body)
    return client.post(f"/sales/{sale.slug}/buy/", sent, content_type=JSON, **options)


def step(client: Client, path: str, key: object, **options: object):
    """Pay or cancel."""
    return client.post(path, {"idempotency_key": key}, **options)


def everything() -> tuple[object, ...]:
    rows = [model.objects.count() for model in (Order, StockMovement, Allowance, User)]
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

BODIES = {
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


# --- quantity and key -------------------------------------------------------------------------

QUANTITIES = [
    *("0", "-1", str(LIMIT + 1), "1.5", "", " ", " 1", "1 ", "+1", "01", "\0", "1\0", "9" * 20),
    *("1_0", "٣", "1.0", "1e0", "0x1", "one", "true", "NaN", "9" * 5000, "１"),
]


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


KEYS = ["", " ", "x" * 256, "a\0", "a\nb", "a\x7f", "a\x85b", "\u202e", None, 7, ["k"], "\ud800"]


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


# --- sessions, hosts, floods ------------------------------------------------------------------

PASSWORD = "a-red-kettle-9"  # noqa: S105


@pytest.fixture
def wang() -> User:
    return User.objects.create_user("wang", password=PASSWORD)


def sign_in(client: Client, name: str = "wang", password: str = PASSWORD, **fields: str):
    form = {"username": name, "password": password, **fields}
    return client.post("/accounts/sign-in/", form, headers={"X-Forwarded-For": fields.get("via")})


@pytest.mark.parametrize(
    "then",
    ["https://evil.example/", "//evil.example", "javascript:alert(1)", "\\\\evil", "///e", "\0"],
)
def test_nobody_is_sent_elsewhere(wang, then):
    client = client_of()
    assert sign_in(client, next=then)["Location"] == "/"
    response = client.post("/i18n/setlang/", {"language": "zh-hans", "next": then})
    assert response["Location"] == "/"
    form = {"username": "new", "password1": PASSWORD, "password2": PASSWORD, "next": then}
    assert client_of().post("/accounts/sign-up/", form)["Location"] == "/"


def test_the_session_key_changes_at_sign_in(wang, client):
    client.get("/accounts/sign-in/")
    session = client.session
    session["seen"] = True
    session.save()
    before = session.session_key
    sign_in(client)
    assert client.session.session_key != before


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize("name", ["", "a\0b", "x" * 200_000, "<script>", "' or 1=1 --", "none"])
def test_odd_names(name):
    assert sign_in(client_of(), name).status_code == 400
    form = {"username": name, "password1": "x", "password2": "y"}
    assert client_of().post("/accounts/sign-up/", form).status_code == 400


def test_a_name_is_taken_once(wang):
    form = {"username": "wang", "password1": PASSWORD, "password2": PASSWORD}
    assert client_of().post("/accounts/sign-up/", form).status_code == 400


@pytest.mark.parametrize("path", ["/", "/sales/x/", "/accounts/sign-in/"])
@pytest.mark.parametrize("host", ["evil.example", "localhost:x", "a b", ""])
def test_wrong_host(path, host):
    assert client_of().get(path, headers={"Host": host}).status_code == 400


def test_a_flood_of_wrong_passwords(wang, settings):
    settings.SIGN_IN_FAILURE_LIMIT = "3/minute"
    client = client_of()
    for _ in range(3):
        assert sign_in(client, "wang", "wrong").status_code == 400
    # A forged address is no other address, and the right password comes too late.
    response = sign_in(client, via="203.0.113.9")
    assert response.status_code == 429
    assert 0 < int(response["Retry-After"]) <= 60
    assert sign_in(client, "zhang", "wrong").status_code == 400, "others are not locked out"


def test_a_flood_of_sign_ins(wang, settings):
    settings.SIGN_IN_LIMIT = "2/minute"
    statuses = [sign_in(client_of(), via=f"203.0.113.{n}").status_code for n in range(3)]
    assert statuses == [302, 302, 429]
    assert client_of().post("/accounts/sign-up/", {}).status_code == 429


def test_our_own_proxy_tells_the_address(wang, settings):
    settings.SIGN_IN_LIMIT, settings.PROXY_HOPS = "1/minute", 1
    client = client_of()
    assert sign_in(client, via="198.51.100.1, 203.0.113.1").status_code == 302
    assert sign_in(client, via="198.51.100.2, 203.0.113.1").status_code == 429
    assert sign_in(client, via="203.0.113.1, 203.0.113.2").status_code == 302


def test_a_flood_of_purchases(li, sale, settings):
    settings.BUY_LIMIT = "3/minute"
    client = client_of(li)
    for n in range(3):
        assert buy(client, sale, idempotency_key=f"k{n}").status_code == 303
    before = everything()
    response = buy_json(client, sale, {"quantity": 1, "idempotency_key": "k9"})
    assert (response.status_code, response.json()["error"]) == (429, "too_many")
    assert buy(client, sale, idempotency_key="k9").status_code == 429
    assert everything() == before
    assert buy(client_of(a_customer()), sale).status_code == 303


def test_only_staff_come_in(li):
    client = client_of(li)
    assert client.get("/admin/").status_code == 302
    for path in ("/admin/locking/lockpolicy/1/change/", "/admin/shop/order/"):
        assert client.get(path).status_code == 302


def test_setting_a_language_that_does_not_exist(li):
    form = {"language": "../../etc", "next": "/"}
    assert client_of(li).post("/i18n/setlang/", form).status_code == 302
    assert client_of(li, headers={"Accept-Language": "x" * 9999}).get("/").status_code == 200


def test_odd_cookies(sale):
    client = client_of()
    client.cookies.load({"sessionid": "\x01'; --", "csrftoken": "x", "messages": "x"})
    assert client.get(f"/sales/{sale.slug}/").status_code == 200
    assert buy(client, sale).status_code == 302


def test_the_body_is_no_query(li, sale):
    """What stands behind the question mark is not the form."""
    query = urlencode({"quantity": 1, "idempotency_key": "k"})
    response = client_of(li).post(f"/sales/{sale.slug}/buy/?{query}", {})
    assert response.status_code == 400
