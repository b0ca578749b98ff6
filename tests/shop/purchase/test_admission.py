"""Admission control: refusals from memory."""

import pytest

from inventory import stock
from locking import policy
from shop.errors import NotFound, NotOpen, SoldOut
from shop.models import Order, Sale, User
from shop.orders.service import cancel_order
from shop.purchase import admission
from shop.purchase.admission import admit, cached_sale
from shop.purchase.place_order import place_order
from shop.sales import stock_lock
from tests.shop.making import a_customer, a_sale, fresh, put_in_force

pytestmark = pytest.mark.django_db


def test_cached_sale_is_read_once_in_a_moment(django_assert_num_queries) -> None:
    sale = a_sale()
    with django_assert_num_queries(1):
        assert cached_sale(slug=sale.slug) is cached_sale(slug=sale.slug)


def test_sale_reopens_when_stock_returns(monkeypatch) -> None:
    sale = a_sale(stock=0)
    assert cached_sale(slug=sale.slug).phase() == sale.Phase.SOLD_OUT
    stock.execute(stock.restock(stock_id=sale.stock_id, quantity=1))
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


def is_refused(sale: Sale, customer: User) -> bool:
    try:
        admit(sale=fresh(sale), customer_id=customer.pk)
    except SoldOut:
        return True
    return False


@pytest.fixture
def sold() -> tuple[Sale, User]:
    """A sold-out sale, and the customer who has the last unit."""
    put_in_force("process")
    sale, holder = a_sale(stock=1), a_customer()
    place_order(customer_id=holder.pk, sale=fresh(sale), quantity=1, key="k")
    return sale, holder


def test_refusals_of_a_sold_out_sale_cost_one_query(sold, django_assert_num_queries) -> None:
    sale, holder = sold
    others, read = [a_customer() for _ in range(3)], fresh(sale)
    policy.current()
    admission.gate_page(sale=read, customer_id=None)  # reads which sales have a waiting room
    with django_assert_num_queries(1):
        for other in others:
            with pytest.raises(SoldOut):
                admit(sale=read, customer_id=other.pk)
    with django_assert_num_queries(0):
        admit(sale=read, customer_id=holder.pk)  # the form may be the one of the order


def test_customer_with_a_returned_unit_is_admitted(sold, monkeypatch) -> None:
    sale, holder = sold
    late = a_customer()
    assert is_refused(sale, late)
    cancel_order(order=Order.objects.get())
    place_order(customer_id=late.pk, sale=fresh(sale), quantity=1, key="k")
    assert not is_refused(sale, late), "the stock changed after the customers were read"
    assert not is_refused(sale, a_customer()), "the purchase itself reads the orders"
    monkeypatch.setattr(admission, "CUSTOMERS_INTERVAL", 0)
    monkeypatch.setattr(admission, "FLAG_AGE", 0)  # all of this may have taken less
    assert not is_refused(sale, a_customer()), "more stock may be returning"
    admission.clear()
    monkeypatch.setattr(stock_lock, "command", lambda *_: 0)
    assert is_refused(sale, a_customer())
    assert not is_refused(sale, late)
    assert not is_refused(sale, holder)


def test_customers_are_unknown_while_writes_leave_no_fence(sold) -> None:
    put_in_force("process", "naive")
    assert not is_refused(sold[0], a_customer())


def test_early_customers_are_refused_from_memory(django_assert_num_queries) -> None:
    put_in_force("process")
    sale = fresh(a_sale(opens_in=60))
    policy.current()
    with django_assert_num_queries(1):
        for customer in range(3):
            with pytest.raises(NotOpen):
                admit(sale=sale, customer_id=customer)
