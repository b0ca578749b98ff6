"""FAULTS.md, "Bad input", for pages and orders: the right status, and no row changes.

Purchases are in `test_bad_purchases.py`.
"""

from collections.abc import Iterator
from io import BytesIO
from wsgiref.util import setup_testing_defaults

import pytest
from django.test import Client

from inventory.models import Stock, StockMovement
from shop.models import CustomerQuota, Order, Sale, User
from shop.wsgi import application
from tests.shop.making import a_customer, a_sale, buy, signed_in
from tests.shop.web.wsgi_browser import FORM

JSON = "application/json"
FORM_DATA = "multipart/form-data; boundary=x"
MULTIPART = b'--x\r\nContent-Disposition: form-data; name="username"\r\n\r\nli\r\n--x--\r\n'
pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]


@pytest.fixture
def sale() -> Sale:
    return a_sale()


def everything() -> tuple[object, ...]:
    """Return everything that malformed input could change."""
    rows = [model.objects.count() for model in (Order, StockMovement, CustomerQuota, User)]
    return (
        *rows,
        *Stock.objects.order_by("pk").values_list("pk", "quantity", "fence_token"),
        *Order.objects.order_by("pk").values_list("pk", "status"),
    )


@pytest.fixture(autouse=True)
def no_traceback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    # The settings drop the traceback of django.security.
    logged = [line for line in caplog.records if not line.name.startswith("django.security")]
    assert [line.getMessage() for line in logged if line.exc_info] == []


def test_page_refuses_post(li):
    client = signed_in(li, enforce_csrf_checks=True)
    client.get("/")
    for path in ("/", "/products/", "/orders/", "/livez", "/sales/x/"):
        response = client.post(path)
        assert (response.status_code, response["Allow"]) == (405, "GET, HEAD"), path


UNKNOWN = "/sales/none/ /sales/none/stock/ /products/none/ /orders/none/ /nowhere /sales/%00/"
UNKNOWN += " /sales/a%00b/ /products/%00/ /orders/%00/ /%ff /sales/%2e%2e/"


@pytest.mark.parametrize(
    ("accept", "sent"), [("text/html", "text/html"), (JSON, "application/problem+json")]
)
def test_unknown_page_is_404(accept, sent, li):
    client = signed_in(li)
    for path in (*UNKNOWN.split(), "/" + "x" * 5000):
        response = client.get(path, headers={"Accept": accept})
        assert (response.status_code, response["Content-Type"].startswith(sent)) == (404, True), (
            path
        )


PARAMETERS = [
    *("charset=" + name for name in ("hex", "idna", "undefined", "utf-16", "unknown", '"a\0b"')),
    *("charset*=hex''%41", "x*=hex''%41", 'charset="utf-8"'),
]


@pytest.mark.parametrize(
    ("method", "path", "query", "status"),
    [
        ("GET", "/accounts/sign-in/", "q=1", 200),
        ("GET", "/accounts/sign-in/", "&".join(["q=1"] * 1001), 400),
        ("POST", "/accounts/sign-in/", "", 403),
    ],
)
def test_charset_never_fails_at_the_entry_point(method, path, query, status, db):
    """Django's request class and its parser of forms would raise: 500."""
    for parameter in PARAMETERS:
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query}
        environ |= {"CONTENT_TYPE": f"{FORM_DATA}; {parameter}"}
        environ |= {"CONTENT_LENGTH": str(len(MULTIPART))}
        setup_testing_defaults(environ)
        environ["wsgi.input"] = BytesIO(MULTIPART)
        seen = []
        application(environ, lambda line, headers, seen=seen: seen.append(line))
        assert seen[0].startswith(str(status)), parameter


def test_session_cookie_with_nul_is_that_of_a_visitor(sale):
    visitor, cookie = Client(), r'sessionid="aaaaaaaaa\000"'
    for path in ("/", f"/sales/{sale.slug}/", "/accounts/sign-in/"):
        assert visitor.get(path, headers={"Cookie": cookie}).status_code == 200
    assert visitor.get("/orders/", headers={"Cookie": cookie}).status_code == 302


def test_early_refusal_is_in_the_language_of_its_request(li, sale):
    """LocaleMiddleware has not run; the thread still has the language of its last page."""
    client, form = signed_in(li), "&".join(["x=1"] * 1001)
    for language, title in (("zh-hans", "请求无法识别"), ("en", "We couldn&#x27;t read")):
        client.get("/", headers={"Accept-Language": "zh-hans" if language == "en" else "en"})
        asked = {"content_type": FORM, "headers": {"Accept-Language": language}}
        refused = client.post(f"{sale.get_absolute_url()}buy/", form, **asked)
        assert title in refused.text


@pytest.mark.parametrize("accept", ["text/html", JSON])
def test_foreign_order_looks_like_a_missing_one(li, sale, accept):
    buy(signed_in(li), sale)
    number = Order.objects.get().number
    other = signed_in(a_customer())
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


@pytest.mark.parametrize("verb", ["pay/", "cancel/"])
def test_order_change_takes_one_good_key_or_none(verb, li, sale):
    """tests/locking/test_idempotency.py has all bad keys."""
    client = signed_in(li)
    buy(client, sale)
    path = Order.objects.get().get_absolute_url() + verb
    before = everything()
    for key in ("", "x" * 256, ["a", "a"]):
        assert client.post(path, {"idempotency_key": key}).status_code == 400, key
    assert client.post(path, {"idempotency_key": 7}, content_type=JSON).status_code == 400
    assert client.post(path, b"x", content_type="text/plain").status_code == 415
    assert everything() == before
    assert [client.post(path).status_code for _ in range(2)] == [303, 409]
