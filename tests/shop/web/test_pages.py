"""What people see: every state of a sale, in both languages, with and without the stores."""

import re
from datetime import timedelta
from html import unescape
from unittest.mock import Mock, patch

import pytest
from django.db import OperationalError
from django.template.loader import render_to_string
from django.test import Client
from django.utils import timezone

from inventory import stock
from inventory.models import Stock
from locking import LockUnavailable, locks
from shop.catalogue import page_cache
from shop.models import Order, Sale, User
from shop.web import pages
from shop.web.context import banners
from tests.shop.making import PASSWORD, a_sale, buy, put_in_force, signed_in
from tests.shop.staff import CLOSED_PORT

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _read_anew(in_force: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time; tests/shop/catalogue/test_page_cache.py covers the page cache."""
    for name, seconds in (("TTL", 1e-6), ("STALE", 0)):
        monkeypatch.setattr(page_cache, name, seconds)


def button(page: str) -> str:
    """Return the text of the main button or link, in parentheses if it is disabled."""
    action = page.split('<div class="action">')[1]
    found = re.search(r'<(?:button|a)\b[^>]*class="wide[^>]*>.*?</(?:button|a)>', action, re.S)
    assert found
    text = " ".join(re.sub(r"<[^>]+>", " ", found[0]).split())
    return f"({text})" if " disabled" in found[0] else text


# --- the sale page ----------------------------------------------------------------------------


def test_button_follows_the_phase_of_the_sale(shop):
    def of(sale: Sale) -> str:
        return button(shop.get(f"/sales/{sale.slug}/").text)

    assert re.fullmatch(r"\(Opens .*\d\d:\d\d UTC\+8\)", of(a_sale(opens_in=600)))
    assert of(a_sale()) == "Buy now"
    assert of(a_sale(stock=0)) == "(Sold out)"
    assert of(a_sale(opens_in=-60, lasts=30)) == "(Ended)"
    sale = a_sale(limit=1)
    buy(shop, sale)
    assert of(sale).startswith("Pay now · Pay by")
    Order.objects.update(status=Order.Status.PAID)
    assert of(sale) == "See your order"
    assert "buy" not in shop.get(f"/sales/{sale.slug}/").text.split('class="action"')[1][:600]


def test_each_page_load_has_its_own_key(shop):
    page = f"/sales/{a_sale(opens_in=600).slug}/"
    first, again = (shop.get(page) for _ in range(2))
    assert 'data-open-label="Buy now"' in first.text
    assert first.context["key"] != again.context["key"]
    assert first["Cache-Control"] == again["Cache-Control"]
    assert "no-store" in first["Cache-Control"]


def test_refusal_without_script_is_updated_as_it_says(shop):
    sale = a_sale(stock=0)
    page = buy(shop, sale).text
    assert "We'll update this page." in unescape(page)
    assert f'http-equiv="refresh" content="20; url=/sales/{sale.slug}/"' in page
    assert "refresh" not in buy(shop, a_sale(stock=1), quantity=2).text, "it has a form to change"


def test_stock_bar_is_polled_until_the_end(shop):
    sale = a_sale(stock=7)
    page = f"/sales/{sale.slug}/stock/"
    bar = shop.get(f"{page}?phase=open")
    assert "HX-Refresh" not in bar
    assert "HX-Refresh" not in shop.get(f"{page}?phase=before"), "no rush at the opening"
    assert shop.get(f"{page}?phase=sold_out")["HX-Refresh"] == "true"
    assert 'value="7" max="7"' in bar.text
    assert (bar["X-Poll"], 'data-poll="1000"' in bar.text) == ("1000", True)
    buy(shop, sale, quantity=5)
    assert 'value="2" max="7"' in shop.get(f"{page}?phase=open").text
    stock.commit(stock.restock(stock_id=sale.stock_id, quantity=10))
    assert 'value="12" max="17"' in shop.get(f"{page}?phase=open").text
    Sale.objects.update(closes_at=timezone.now())
    ended = shop.get(f"{page}?phase=open")
    assert ended["HX-Refresh"] == "true"
    assert "hx-get" not in ended.text


def test_open_page_learns_of_another_opening_or_price(shop):
    sale = a_sale(opens_in=600)
    found = re.search(r'hx-get="(/sales/[^"]*/stock/[^"]*)"', shop.get(f"/sales/{sale.slug}/").text)
    poll = unescape(found[1])
    for changed, is_loaded in (
        ({"opens_at": sale.opens_at}, False),
        ({"opens_at": sale.opens_at + timedelta(minutes=10)}, True),
        ({"opens_at": timezone.now()}, False),  # no rush when staff open the sale
        ({"price": "12.30"}, True),
    ):
        Sale.objects.update(**changed)
        assert ("HX-Refresh" in shop.get(poll)) == is_loaded


# --- home, catalogue, accounts ----------------------------------------------------------------


def test_home_links_the_sales_that_it_leaves_out(client, monkeypatch):
    def links() -> list[str]:
        return re.findall(r"[?]show=(\w+)", client.get("/").text)

    for module in (page_cache, pages):
        monkeypatch.setattr(module, "CURRENT", 2)
    a_sale()
    assert links() == []
    a_sale()
    assert links() == ["live"]
    for _ in range(3):
        a_sale(opens_in=600)
    assert links() == ["live", "soon"]


def test_home_poll_replaces_only_what_changed(client):
    live, soon = a_sale(stock=7), a_sale(opens_in=60)
    ended = a_sale(opens_in=-60, lasts=30)
    home = client.get("/")
    poll = re.search(r'hx-get="(/live/\?layout=[0-9a-f]+)"', home.text)[1]
    Stock.objects.filter(pk=live.stock_id).update(quantity=5)
    states = client.get(poll)
    assert states["HX-Reswap"] == "none"
    assert states.text.count("hx-swap-oob") == 2
    assert "5 left" in states.text.split(soon.slug)[0]
    assert not re.search(rf"{ended.slug}|<img|<h3", states.text)
    assert len(states.content) < 2000
    Sale.objects.filter(pk=soon.pk).update(opens_at=timezone.now())
    cards = client.get(poll)
    assert "HX-Reswap" not in cards
    assert cards.text.count("● Open") == 2
    assert f'href="/sales/{soon.slug}/"' in cards.text


@pytest.mark.parametrize(
    ("opens_in", "least", "most"),
    [(-60, 1000, 1000), (0.4, 1000, 1000), (50, 20_000, 50_000), (9999, 60_000, 60_000)],
)
def test_polls_follow_the_distance_to_the_opening(client, opens_in, least, most):
    sale = a_sale(opens_in=opens_in)
    for poll in (f"/sales/{sale.slug}/stock/", "/live/"):
        assert least <= int(client.get(poll)["X-Poll"]) <= most
    Sale.objects.update(closes_at=timezone.now(), opens_at=timezone.now() - timedelta(hours=9))
    assert client.get("/live/")["X-Poll"] == "60000", "nothing is on sale"


def test_demo_accounts_are_offered_only_with_the_public_password(client, settings):
    """tests/shop/management/test_seed.py signs them in."""
    page = client.get("/accounts/sign-in/?next=/orders/").text
    for name in ("li", "amy", "ben"):
        form = {"username": name, "password": settings.DEMO_PASSWORD, "next": "/orders/"}
        for field, value in form.items():
            assert f'name="{field}" value="{value}"' in page
    settings.SEED_PASSWORD = "a-secret-kettle"  # noqa: S105
    assert "demo account" not in client.get("/accounts/sign-in/").text


# --- policy, health, faults -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "strategy", "warns"),
    [
        ("none", "naive", "no lock protects the stock"),
        ("process", "naive", "no lock between processes protects the stock"),
        ("redis", "naive", "only the lock protects the stock (Redis"),
        ("none", "conditional", ""),
    ],
)
def test_banner_warns_staff_while_the_shop_can_oversell(shop, backend, strategy, warns):
    put_in_force(backend, strategy)
    staff = signed_in(User.objects.create(username="amy", is_staff=True))
    for page in ("/", "/nowhere"):
        told = staff.get(page).text
        assert warns in told
        assert ("Overselling is possible" in told) is bool(warns)
        for other in (shop, Client()):
            assert "Overselling is possible" not in other.get(page).text


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("down", "status"), [("", 200), ("lock", 503), ("redis", 503), ("cache", 200)]
)
def test_readyz_names_the_unavailable_store(client, settings, monkeypatch, down, status):
    """It needs the Redis of queued sales, but no cache."""
    if down == "lock":
        monkeypatch.setattr(locks["process"], "probe", Mock(side_effect=LockUnavailable))
    elif down:
        setattr(settings, {"redis": "QUEUE_REDIS_URL", "cache": "CACHE_URL"}[down], CLOSED_PORT)
    ready = client.get("/readyz")
    stores = ready.json()["stores"]
    assert (ready.status_code, {*stores}) == (status, {"database", "redis", "cache", "lock"})
    assert [name for name, told in stores.items() if not told["ok"]] == ([down] if down else [])
    assert client.get("/livez").content == b"ok\n"


@pytest.fixture
def no_redis(settings) -> None:
    """Point cache, sessions and rate limits to a closed port."""
    settings.REDIS_URL = settings.QUEUE_REDIS_URL = settings.CACHE_URL = CLOSED_PORT
    settings.CACHES = {
        name: {**conf, "LOCATION": CLOSED_PORT} for name, conf in settings.CACHES.items()
    }


def test_without_redis_the_shop_still_sells(no_redis, shop, li):
    shop.force_login(li)
    page = buy(shop, a_sale())["Location"]
    assert "Waiting for payment" in shop.get(page).text
    form = {"username": "wang", "password1": PASSWORD, "password2": PASSWORD}
    assert Client().post("/accounts/sign-up/", form).status_code == 302


RELOADS = '<meta http-equiv="refresh" content="5">'
FAILURES = {
    503: (OperationalError("secret"), ["having trouble", RELOADS, 'href="/?x=1"']),
    500: (RuntimeError("secret"), ["Something went wrong"]),
}


@pytest.mark.parametrize("status", FAILURES)
def test_failed_page_says_so(shop, status):
    error, texts = FAILURES[status]
    shop.raise_request_exception = False
    with patch("shop.catalogue.page_cache.current_sales", side_effect=error):
        page = shop.get("/?x=1")
    assert (page.status_code, page.headers.get("Retry-After") == "2") == (status, status == 503)
    assert "secret" not in page.text
    assert [text for text in texts if text not in page.text] == []


@pytest.mark.parametrize(
    ("method", "path", "status", "next_step"),
    [
        ("get", "/nowhere", 404, 'action="/products/"'),
        ("get", "/ops/", 403, 'href="/accounts/sign-in/"'),
        ("get", "/sales/{slug}/buy/", 405, 'href="../"'),
        ("post", "/sales/{slug}/buy/", 400, 'href="../"'),
        ("post", "/orders/", 405, 'href="/"'),
    ],
)
def test_error_page_offers_the_next_step(shop, method, path, status, next_step):
    page = getattr(shop, method)(path.format(slug=a_sale().slug))
    assert page.status_code == status
    assert next_step in page.text.split("<main")[1]


def test_pages_name_the_shop_and_its_footer(rf, settings) -> None:
    settings.SHOP_NAME, settings.SHOP_FOOTER = "Tea & Co", "Tea & Co Ltd, Bath"
    settings.SOURCE_URL = "https://example.com/code"
    request = rf.get("/")
    page = render_to_string("base.html", banners(request), request)
    assert "<title> · Tea &amp; Co</title>" in page
    assert "Tea &amp; Co Ltd, Bath<br>" in page
    assert '<a href="https://example.com/code">Source code</a>' in page
    assert "Demo shop" not in page
