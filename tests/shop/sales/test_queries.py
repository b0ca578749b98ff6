"""A sale is found by its exact slug: MariaDB's collation would also find other spellings."""

import pytest
from django.test import Client

from shop.errors import NotFound
from shop.models import Sale
from shop.purchase.admission import cached_sale
from shop.sales.queries import get_product, get_sale, has_product, has_sale, sale_for_purchase
from tests.shop.making import a_sale, buy, signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]


def test_sale_for_purchase_has_the_columns_of_the_models() -> None:
    sale = a_sale()
    sale.stock.fence_epoch, sale.stock.fence_token = 3, 2**40
    sale.stock.save()
    read, expected = sale_for_purchase(slug=sale.slug), get_sale(slug=sale.slug)
    assert read == expected == sale
    for one, other in ((read, expected), (read.stock, expected.stock)):
        for field in type(one)._meta.concrete_fields:
            assert getattr(one, field.attname) == getattr(other, field.attname), field
    sale.product.is_listed = False
    sale.product.save()
    with pytest.raises(NotFound):
        sale_for_purchase(slug=sale.slug)


@pytest.mark.parametrize("spell", [str, str.upper, str.title, str.capitalize])
def test_only_the_exact_slug_finds_a_sale_and_its_product(spell) -> None:
    sale, client = a_sale(), Client()
    slug = spell(sale.slug)
    is_exact = slug == sale.slug
    for find in (get_sale, cached_sale, get_product):
        if is_exact:
            assert find(slug=slug).slug == slug
        else:
            with pytest.raises(NotFound):
                find(slug=slug)
    assert has_sale(slug=slug) is has_product(slug=slug) is is_exact
    for path in (f"/sales/{slug}/", f"/sales/{slug}/stock/", f"/products/{slug}/"):
        assert client.get(path).status_code == (200 if is_exact else 404)
    assert buy(signed_in(), Sale(slug=slug)).status_code == (303 if is_exact else 404)
