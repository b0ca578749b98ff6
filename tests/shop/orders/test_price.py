"""ADR 13: an order has the price that its sale had when it was placed, and the customer sees it."""

from __future__ import annotations

import re
from decimal import Decimal
from html import unescape

import pytest
from django.core.cache import cache

from shop.models import Order, Payment, Sale
from shop.purchase import admission
from tests.shop.making import a_sale, buy, signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]


def change_price(price: str) -> None:
    Sale.objects.update(price=Decimal(price))
    admission.clear()


def test_pages_show_the_price_of_the_order_before_it_is_paid() -> None:
    sale, client = a_sale(), signed_in()
    assert "9.90" in client.get(f"/sales/{sale.slug}/").text
    change_price("12.30")
    order_page = client.get(buy(client, sale)["Location"])
    assert "12.30" in order_page.text
    change_price("99.90")
    order = Order.objects.get()
    paid = client.post(f"{order.get_absolute_url()}pay/", {"idempotency_key": "p"})
    assert "12.30" in client.get(paid["Location"]).text
    assert (order.unit_price, Payment.objects.get().amount) == (Decimal("12.30"), Decimal("12.30"))


def test_largest_order_can_be_paid() -> None:
    sale, client = a_sale(stock=100, limit=100), signed_in()
    change_price("99999999.99")
    page = buy(client, sale, quantity=100)["Location"]
    assert client.post(f"{page}pay/", {"idempotency_key": "p"}).status_code == 303
    assert Payment.objects.get().amount == Decimal("9999999999.00")
    assert "Paid" in client.get(page).text


@pytest.mark.parametrize("name", ["price", "unit_price", "total", "amount"])
def test_price_of_a_client_is_ignored(name: str) -> None:
    sale, client = a_sale(), signed_in()
    form = {"quantity": 1, "idempotency_key": "k", name: "0.01"}
    assert client.post(f"/sales/{sale.slug}/buy/", form).status_code in (302, 303)
    assert Order.objects.get().unit_price == sale.price


def test_open_page_is_loaded_again_at_a_new_price(shop) -> None:
    """Staff may correct the price before the opening; the poll names the price of its page."""
    sale = a_sale(opens_in=3600)
    poll = re.search(r'hx-get="([^"]*)"', shop.get(f"/sales/{sale.slug}/").text)[1]
    assert "HX-Refresh" not in shop.get(unescape(poll))
    change_price("12.30")
    cache.clear()
    assert shop.get(unescape(poll))["HX-Refresh"] == "true"
