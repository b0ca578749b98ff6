"""Admission control: refusals from memory."""

import pytest

from inventory import stock
from shop.errors import NotFound, NotOpen, SoldOut
from shop.purchase import admission
from shop.purchase.admission import admit, cached_sale
from shop.sales.purchase_request import PurchaseRequest
from tests.shop.making import a_customer, a_sale, fresh

pytestmark = pytest.mark.django_db


def test_cached_sale_is_read_once_in_a_moment(django_assert_num_queries) -> None:
    sale = a_sale()
    with django_assert_num_queries(1):
        assert cached_sale(slug=sale.slug) is cached_sale(slug=sale.slug)


def test_sale_reopens_when_stock_returns(monkeypatch) -> None:
    sale = a_sale(stock=0)
    assert cached_sale(slug=sale.slug).phase() == sale.Phase.SOLD_OUT
    stock.commit(stock.restock(stock_id=sale.stock_id, quantity=1))
    monkeypatch.setattr(admission, "MAX_AGE", 0)
    assert cached_sale(slug=sale.slug).phase() == sale.Phase.OPEN


def test_missing_sale_is_not_cached() -> None:
    sale = a_sale()
    slug, sale.slug = sale.slug, "later"
    sale.save()
    with pytest.raises(NotFound):
        cached_sale(slug=slug)
    sale.slug = slug
    sale.save()
    assert cached_sale(slug=slug) == sale


@pytest.mark.parametrize(
    ("what", "refusal"), [({"stock": 0}, SoldOut), ({"opens_in": 60}, NotOpen)], ids=repr
)
def test_only_a_first_attempt_is_refused_from_memory(
    what, refusal, in_force, django_assert_num_queries
) -> None:
    """Any other form may be the one of an order, for which the purchase itself looks."""
    wanted = PurchaseRequest(a_customer().pk, fresh(a_sale(**what)), 1, "k")
    admission.gate_page(sale=wanted.sale, customer_id=None)  # reads which sales have a waiting room
    with django_assert_num_queries(0):
        with pytest.raises(refusal):
            admit(wanted._replace(is_first_attempt=True))
        admit(wanted)
