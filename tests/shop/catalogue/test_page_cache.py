"""What the viewers of a page share: how often it is read, and that it does not lie."""

from datetime import timedelta
from unittest.mock import patch

import pytest
from django.core.cache import cache
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inventory.models import Product, Stock
from locking import policy, single_flight
from shop.catalogue import page_cache
from shop.models import Sale
from tests.shop.admin_pages import act
from tests.shop.making import a_sale, signed_in

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _kept(in_force: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read once lasts for the test."""
    monkeypatch.setattr(page_cache, "TTL", 60.0)


def queries(client: Client, page: str) -> int:
    with CaptureQueriesContext(connection) as queries:
        assert client.get(page).status_code == 200
    return len(queries)


@pytest.mark.parametrize(
    "page", ["/", "/products/", "/products/{}/", "/sales/{}/", "/sales/{}/stock/"]
)
def test_cached_page_needs_few_queries(page):
    page = page.format(a_sale().slug)
    for client, most in ((Client(), 1), (signed_in(), 5)):
        client.get(page)
        policy.invalidate()  # which every process reads once a second
        assert queries(client, page) <= most
        assert queries(client, page) <= most - 1


def test_missing_sale_is_looked_up_once():
    """Nor does a made-up name leave anything in the cache that outlives a second or two."""
    client = Client()
    with (
        patch("shop.catalogue.page_cache.has_sale", side_effect=page_cache.has_sale) as lookups,
        patch.object(cache, "set", side_effect=cache.set) as kept,
    ):
        for slug in ("nothing", "nothing", "long" * 100):
            assert client.get(f"/sales/{slug}/").status_code == 404
        assert lookups.call_count == 1
    (entry,) = (call for call in kept.call_args_list if "nothing" in call.args[0])
    assert entry.kwargs["timeout"] == page_cache.TTL


def test_any_page_number_shows_a_page():
    Product.objects.bulk_create(
        Product(slug=f"p{n}", name=f"P {n}", price=1) for n in range(2 * page_cache.PAGE - 1)
    )
    first = ("1", "x", "", "\0", "1" * 5000)
    for number in (*first, "2", "999999", "0", "-1", "٣", *first, "2"):
        page = Client().get("/products/", {"page": number}).context["page"]
        is_first = number in first
        assert (page.number, page.paginator.num_pages) == (1 if is_first else 2, 2)
        assert len(page.object_list) == (page_cache.PAGE if is_first else page_cache.PAGE - 1)


@pytest.mark.parametrize("is_told", [True, False])
def test_change_by_staff_invalidates_the_pages(amy, is_told):
    sale = a_sale(stock=3)
    product = sale.product
    pages = ["/", "/products/", f"/products/{product.slug}/", f"/sales/{sale.slug}/"]
    viewer = Client()
    for page in pages:
        assert "Kettle" in viewer.get(page).text
    form = {"name": "Teapot", "slug": product.slug, "price": "77", "is_listed": "on"}
    with patch.object(single_flight, "invalidate", wraps=single_flight.invalidate) as invalidations:
        if not is_told:
            invalidations.side_effect = lambda *families: None
        change = f"/admin/inventory/product/{product.pk}/change/"
        assert amy.post(change, form).status_code == 302
    assert invalidations.called
    for page in pages:  # as the control shows, they were kept
        assert ("Teapot" in viewer.get(page).text) is is_told


def test_restock_and_new_sale_invalidate_the_pages(amy):
    sale = a_sale(stock=3)
    page = f"/sales/{sale.slug}/stock/"
    assert 'value="3" max="3"' in amy.get(page).text
    act(amy, "restock", sale, units=4)
    assert 'value="7" max="7"' in amy.get(page).text
    assert amy.get("/sales/later/").status_code == 404
    Sale.objects.filter(pk=sale.pk).update(slug="later")  # no signal
    assert amy.get("/sales/later/").status_code == 404
    Sale.objects.get().save()
    assert amy.get("/sales/later/").status_code == 200


def test_stock_bar_shows_its_age():
    sale = a_sale(stock=3)
    page = f"/sales/{sale.slug}/stock/"
    client = Client()
    before = timezone.now()
    first = client.get(page)
    Stock.objects.update(quantity=1)  # as a purchase does: without a signal
    again = client.get(page)
    assert before < first.context["as_of"] == again.context["as_of"] < again.context["now"]
    assert f'datetime="{timezone.localtime(first.context["as_of"]).isoformat()}"' in again.text
    assert 'value="3"' in again.text
    with patch.object(page_cache, "TTL", 1e-6):
        cache.clear()
        assert 'value="1"' in client.get(page).text


def test_cached_sales_move_between_phases():
    now = timezone.now()
    opens, closes = a_sale(opens_in=600), a_sale(opens_in=-60, lasts=300)
    assert page_cache.get_cached_home() == {"live": [closes], "upcoming": [opens], "past": []}
    with patch("shop.catalogue.page_cache.timezone.now", return_value=now + timedelta(seconds=700)):
        lists = page_cache.get_cached_home()
    assert lists == {"live": [opens], "upcoming": [], "past": [closes]}


def test_home_reads_only_the_sales_that_it_shows(monkeypatch, django_assert_num_queries):
    """However many there are: the live ones that end first, the next and the latest."""
    monkeypatch.setattr(page_cache, "CURRENT", 2)
    monkeypatch.setattr(page_cache, "PAST", 1)
    live = [a_sale(lasts=3600 - 60 * number) for number in range(4)]
    upcoming = [a_sale(opens_in=600 + number) for number in range(4)]
    past = [a_sale(opens_in=-3600 + number, lasts=60) for number in range(4)]
    with django_assert_num_queries(3):
        home = page_cache.get_cached_home()
    assert home == {"live": live[:1:-1], "upcoming": upcoming[:2], "past": past[-1:]}


def test_stale_pages_are_served_without_the_database():
    sale = a_sale()
    page = f"/sales/{sale.slug}/stock/"
    client = Client()
    with patch.object(page_cache, "TTL", 1e-6):
        assert client.get(page).status_code == 200
        with patch(
            "shop.catalogue.page_cache.get_sale", side_effect=OperationalError("gone")
        ) as reads:
            assert client.get(page).status_code == 200
            assert reads.called
            with patch.object(page_cache, "STALE", 0):
                assert client.get(page).status_code == 503
