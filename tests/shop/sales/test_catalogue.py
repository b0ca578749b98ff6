"""The products page: search, choices, order and pages, in one address that can be shared."""

import re
from datetime import timedelta
from decimal import Decimal
from html import unescape

import pytest
from django.test import Client
from django.utils import timezone

from inventory.models import Product
from shop.catalogue import page_cache
from shop.sales.queries import create_sale

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]


def a_product(slug: str, price: int, **fields: object) -> Product:
    return Product.objects.create(slug=slug, name=slug.title(), price=price, **fields)


def put_on_sale(product: Product, price: str, *, opens_in: float = -60, stock: int = 5) -> None:
    opens_at = timezone.now() + timedelta(seconds=opens_in)
    create_sale(
        product=product,
        slug=f"{product.slug}-{price.replace('.', '-')}",
        price=Decimal(price),
        quantity=stock,
        opens_at=opens_at,
        closes_at=opens_at + timedelta(hours=1),
    )


@pytest.fixture(autouse=True)
def catalogue() -> None:
    """Regular prices rise by name; sales make the dear ones cheap."""
    put_on_sale(a_product("a-cup", 150, name_zh="蓝色杯子"), "99.50")
    put_on_sale(a_product("b-lamp", 300), "80", opens_in=600)
    put_on_sale(a_product("c-phone", 1200), "250", stock=0)
    put_on_sale(a_product("d-watch", 1500), "1000", opens_in=-7200)  # has ended
    a_product("e-piano", 9000)
    put_on_sale(a_product("f-hidden", 10, is_listed=False), "5")


def found(query: str, client: Client | None = None) -> str:
    """Return the initials of the products on the page."""
    page = (client or Client()).get(f"/products/?{query}").context["page"]
    return "".join(product.slug[0] for product in page)


CHOICES = {
    "": "abcde",
    "q=cup+a": "a",
    "q=杯子": "a",
    "show=live": "a",
    "show=soon": "b",
    "sort=price": "bacde",
    "sort=-price": "edcab",
    "q=p&sort=-price": "ecab",
    "q=a&show=live&sort=price": "a",
    "q=piano&show=soon": "",
}


def test_choices_combine():
    assert {query: found(query) for query in CHOICES} == CHOICES


UNKNOWN = "show=nonsense price=-1 sort=name;drop show=live%00 sort=Price sort=" + "9" * 500
MALFORMED = "q=%00 q=%ff q=%25_ show=%ff"


def test_unknown_choices_are_ignored():
    for query in UNKNOWN.split():
        response = Client().get(f"/products/?{query}")
        assert (response.status_code, found(query)) == (200, "abcde"), query
        assert "selected" not in response.text.split('<form class="filter">')[1].split("</form>")[0]
    for query in MALFORMED.split():
        assert Client().get(f"/products/?{query}").status_code == 200, query


def test_page_shows_the_choices_and_the_number_found():
    page = Client().get("/products/?q=p&show=live&sort=-price").text
    assert re.findall(r'<option value="([^"]*)" selected', page) == ["live", "-price"]
    assert 'value="p"' in page
    assert "1 product found" in page
    assert "0 products found" in Client().get("/products/?q=none").text
    assert "found" not in Client().get("/products/").text


def test_links_between_pages_keep_the_choices():
    for number in range(2 * page_cache.PAGE):
        a_product(f"pot-{number:02}", 10 + number)
    client, seen, path = Client(), [], "/products/?q=pot&show=&sort=-price"
    while path:
        response = client.get(path)
        seen += [product.slug for product in response.context["page"]]
        link = re.search(r'rel="next" href="([^"]*)"', response.text)
        path = link and "/products/" + unescape(link[1])
    assert seen == [f"pot-{number:02}" for number in reversed(range(2 * page_cache.PAGE))]


def test_card_shows_the_price_that_sorts_it():
    put_on_sale(Product.objects.get(slug="a-cup"), "1", opens_in=3000)
    assert found("sort=price") == "bacde", "not by a price that the card does not show"
    page = Client().get("/products/?q=cup&sort=price").text
    card = page.split('<article class="card">')[1]
    assert "¥99.50" in card
    assert "¥150" in card
