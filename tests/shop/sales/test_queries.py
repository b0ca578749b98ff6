"""Slugs match exactly: MariaDB's collation would also find other spellings of a slug."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from shop.errors import NotFound
from shop.models import Sale
from shop.purchase.admission import cached_sale
from shop.sales.queries import (
    get_product,
    get_sale,
    has_product,
    has_sale,
    sale_for_purchase,
)
from tests.shop.making import a_sale, buy, put_in_force, signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.stores]

SPELLINGS = [str.upper, str.title, lambda slug: slug.replace("s", "S")]


@pytest.fixture
def sale() -> Sale:
    put_in_force("process")
    cache.clear()
    return a_sale()


def test_slug_finds_its_sale_and_product(sale: Sale) -> None:
    assert get_sale(slug=sale.slug) == cached_sale(slug=sale.slug) == sale
    assert get_product(slug=sale.slug) == sale.product
    assert has_sale(slug=sale.slug)
    assert has_product(slug=sale.slug)


def test_sale_for_purchase_has_the_columns_of_the_models(sale: Sale) -> None:
    stock = sale.stock
    stock.fence_epoch, stock.fence_token = 3, 2**40
    stock.save()
    read, expected = sale_for_purchase(slug=sale.slug), get_sale(slug=sale.slug)
    for one, other in ((read, expected), (read.stock, expected.stock)):
        for field in type(one)._meta.concrete_fields:
            assert getattr(one, field.attname) == getattr(other, field.attname), field
    sale.product.is_listed = False
    sale.product.save()
    with pytest.raises(NotFound):
        sale_for_purchase(slug=sale.slug)


@pytest.mark.parametrize("spell", SPELLINGS)
def test_another_spelling_of_a_slug_finds_nothing(spell: Callable[[str], str], sale: Sale) -> None:
    slug = spell(sale.slug)
    for find in (get_sale, cached_sale, get_product):
        with pytest.raises(NotFound):
            find(slug=slug)
    assert not has_sale(slug=slug)
    assert not has_product(slug=slug)


@pytest.mark.parametrize("spell", SPELLINGS)
def test_another_spelling_of_a_page_is_404(spell: Callable[[str], str], sale: Sale) -> None:
    slug, client = spell(sale.slug), Client()
    for path in (f"/sales/{slug}/", f"/sales/{slug}/stock/", f"/products/{slug}/"):
        assert client.get(path).status_code == 404
    misspelt: Any = Sale(slug=slug)
    assert buy(signed_in(), misspelt).status_code == 404
