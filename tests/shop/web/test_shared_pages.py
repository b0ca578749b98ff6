"""Pages that visitors share: nobody's own data is in them, and errors are nobody else's."""

from concurrent.futures import Future, ThreadPoolExecutor
from unittest.mock import patch

import pytest
from django.core.cache import cache
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory

from devservers.faults.waiting import until
from shop.models import Sale, User
from shop.platform import shared_pages
from tests.locking.held_call import TIMEOUT, HeldCall
from tests.shop.making import a_sale, buy, put_in_force, signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("in_force")]


@pytest.fixture(autouse=True)
def shared(render_always, monkeypatch) -> None:
    """Keep what was rendered for as long as the test."""
    for seconds in ("FRESH", "MAX_AGE"):
        monkeypatch.setattr(shared_pages, seconds, 600.0)


@pytest.fixture
def sale() -> Sale:
    return a_sale(stock=7)


def paths(sale: Sale) -> list[str]:
    product = f"/products/{sale.product.slug}/"
    return ["/", "/products/", "/products/?page=1", product, f"/sales/{sale.slug}/", "/learn/"]


def polls(sale: Sale) -> list[str]:
    return ["/live/?layout=0", f"/sales/{sale.slug}/stock/?phase=open&price=9.90&opens=1"]


def is_shared(client: Client, path: str) -> bool:
    """Return True if the response is one that was rendered for another request."""
    with patch.object(shared_pages, "Rendered", side_effect=AssertionError):
        try:
            return "X-Accel-Expires" in client.get(path)
        except AssertionError:
            return False


def without_id(response: HttpResponse) -> dict[str, str]:
    return {name: value for name, value in response.items() if name != "X-Request-ID"}


def test_visitors_share_pages_and_all_viewers_share_polls(sale):
    for path in paths(sale) + polls(sale):
        first = Client().get(path)
        assert is_shared(Client(), path), path
        again = Client().get(path)
        assert (again.content, without_id(again)) == (first.content, without_id(first))
        assert again["X-Accel-Expires"] == "1"
        assert {"private", "no-store"} & set(again["Cache-Control"].split(", "))
        assert again["Content-Security-Policy"]
        assert Client().head(path).status_code == 200
        assert is_shared(signed_in(), path) == (path in polls(sale)), path


@pytest.mark.parametrize("name", ["sessionid", "messages"])
def test_shared_page_has_nothing_personal(sale, name):
    """Whoever comes first: staff with a banner, a customer, a visitor with a CSRF cookie."""
    put_in_force("none", "naive")
    amy = signed_in(User.objects.create_superuser("amy"))
    assert "Overselling is possible" in amy.get("/").text
    visitor = Client()
    visitor.get("/accounts/sign-in/")
    for client in (amy, visitor, Client(headers={"X-Forwarded-Host": "evil.example"})):
        for path in paths(sale) + polls(sale):
            client.get(path, headers={"X-Forwarded-For": "203.0.113.9"})
    for path in paths(sale) + polls(sale):
        response = Client().get(path)
        assert not response.cookies
        for text in ("amy", "csrfmiddlewaretoken", "Overselling is possible", "evil", "203.0.113"):
            assert text not in response.text, (path, text)
    own = Client()
    own.cookies[name] = "x"
    assert not is_shared(own, "/"), "a message or a session may be shown"


def test_language_and_host_are_part_of_the_page(sale):
    for path in ("/", f"/sales/{sale.slug}/stock/?phase=open&price=9.90&opens=1"):
        english = Client().get(path).text
        for chinese in (
            Client(headers={"Accept-Language": "zh-CN,zh;q=0.9,en;q=0.8"}).get(path),
            Client(headers={"Cookie": "django_language=zh-hans"}).get(path),
        ):
            assert chinese["Content-Language"] == "zh-hans"
            assert chinese.text != english
        assert Client().get(path).text == english
        assert Client().get(path, headers={"Host": "evil.example"}).status_code == 400
    first = Client().get("/learn/fence/", headers={"Host": "localhost"}).text
    assert "http://127.0.0.1/learn/fence/" not in first
    assert "http://127.0.0.1/" in Client().get("/learn/fence/", headers={"Host": "127.0.0.1"}).text


def test_unknown_query_changes_nothing(sale):
    page = f"/sales/{sale.slug}/"
    first = Client().get(page)
    assert Client().get(f"{page}?utm_source=x").content == first.content
    for unknown in (
        "/products/?q=x",
        "/products/?page=1&x=1",
        f"{page}stock/?phase=open",
        "/live/",
    ):
        assert Client().get(unknown).status_code == 200
        assert not is_shared(Client(), unknown), unknown
    assert Client().get(page, headers={"Range": "bytes=0-9"}).content == first.content


def test_error_is_not_shared(sale):
    with patch("shop.catalogue.page_cache.get_sale", side_effect=OperationalError("gone")):
        assert Client().get(f"/sales/{sale.slug}/").status_code == 503
    assert Client().get(f"/sales/{sale.slug}/").status_code == 200
    client = Client(raise_request_exception=False)
    with patch("shop.web.pages.get_cached_home", side_effect=RuntimeError):
        assert client.get("/").status_code == 500
    assert client.get("/").status_code == 200
    assert Client().get("/sales/later/").status_code == 404
    Sale.objects.update(slug="later")
    cache.clear()
    assert Client().get("/sales/later/").status_code == 200


def test_failed_rendering_fails_only_its_own_request():
    """Those who waited for it render for themselves."""
    held, asked = HeldCall(HttpResponse(status=503)), []

    def respond(request: HttpRequest) -> HttpResponse:
        asked.append(request)
        return held() if len(asked) == 1 else HttpResponse(b"mine")

    serve = shared_pages.SharedPageMiddleware(respond)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(serve, RequestFactory().get("/"))
        held.wait_until_started()
        with patch.object(Future, "result", autospec=True, side_effect=Future.result) as waits:
            other = pool.submit(serve, RequestFactory().get("/"))
            until(lambda: waits.called, "the wait of the other")
        held.end()
    assert (first.result(TIMEOUT).status_code, other.result(TIMEOUT).content) == (503, b"mine")


def test_visitor_needs_no_csrf_token_and_a_customer_does(sale):
    customer, visitor = (make(enforce_csrf_checks=True) for make in (signed_in, Client))
    for client, status in ((customer, 403), (visitor, 302)):
        for path in ("/lab/start/", "/ops/switch/"):
            assert client.post(path).status_code == status
        chosen = client.post("/i18n/setlang/", {"language": "zh-hans", "next": "/"})
        assert (chosen.status_code, client.get("/")["Content-Language"]) == (302, "zh-hans")
    assert buy(visitor, sale).status_code == 302
    assert buy(customer, sale).status_code == 403
