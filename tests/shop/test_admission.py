"""The door of a sale."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from inventory import stock
from locking import LockTimeout, policy
from shop.errors import NotFound, NotOpen, QueueFull, SoldOut
from shop.models import Order, Sale, User
from shop.orders.service import cancel_order
from shop.purchase import admission
from shop.purchase.admission import admit, in_line, sale_at_door
from shop.purchase.place_order import place_order
from tests.shop.making import a_customer, a_sale, fresh, put_in_force

pytestmark = pytest.mark.django_db


def test_a_look_is_shared_for_a_moment(django_assert_num_queries) -> None:
    sale = a_sale()
    with django_assert_num_queries(1):
        assert sale_at_door(slug=sale.slug) is sale_at_door(slug=sale.slug)


def test_the_door_reopens_when_stock_returns(monkeypatch) -> None:
    sale = a_sale(stock=0)
    assert sale_at_door(slug=sale.slug).phase() == sale.Phase.SOLD_OUT
    stock.restock(stock_id=sale.stock_id, quantity=1)
    monkeypatch.setattr(admission, "MAX_AGE", 0)
    assert sale_at_door(slug=sale.slug).phase() == sale.Phase.OPEN


def test_a_missing_sale_is_not_remembered() -> None:
    sale = a_sale()
    slug, sale.slug = sale.slug, "later"
    sale.save()
    with pytest.raises(NotFound):
        sale_at_door(slug=slug)
    sale.slug = slug
    sale.save()
    assert sale_at_door(slug=slug) == sale


def test_the_line_has_an_end_and_moves_on(settings) -> None:
    settings.MAX_WAITING = 2
    inside, leave = threading.Semaphore(0), threading.Event()

    def stand() -> None:
        with in_line(sale_id=1):
            inside.release()
            leave.wait(10)

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(stand) for _ in range(2)]
        for _ in waiting:
            assert inside.acquire(timeout=10)
        with pytest.raises(QueueFull), in_line(sale_id=1):
            pass
        with in_line(sale_id=2):
            pass  # another sale's line is another line
        leave.set()
        for each in waiting:
            each.result(10)
    with in_line(sale_id=1):
        pass
    assert not admission._waiting


def test_a_line_that_moves_is_not_full(settings, monkeypatch) -> None:
    settings.MAX_WAITING = 1
    clock = [100.0]
    monkeypatch.setattr(admission, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with in_line(sale_id=1):
        with pytest.raises(QueueFull), in_line(sale_id=1):
            pass
        admission._moved[1] = clock[0]  # another has just left it
        with in_line(sale_id=1):
            clock[0] += 2 * admission.STANDSTILL
            with pytest.raises(QueueFull), in_line(sale_id=1):
                pass
    assert not admission._waiting


def test_who_waited_in_vain_has_not_moved_the_line(settings) -> None:
    """A lock that stays held must not take all threads, one time-out after the other."""
    settings.MAX_WAITING = 1
    with pytest.raises(LockTimeout), in_line(sale_id=1):
        raise LockTimeout
    with in_line(sale_id=1), pytest.raises(QueueFull), in_line(sale_id=1):
        pass
    with pytest.raises(SoldOut), in_line(sale_id=1):
        raise SoldOut
    with in_line(sale_id=1), in_line(sale_id=1):
        pass  # he had the lock


# --- who is certainly in vain -------------------------------------------------------------------


def in_vain(sale: Sale, customer: User) -> bool:
    try:
        admit(sale=fresh(sale), customer_id=customer.pk)
    except SoldOut:
        return True
    return False


@pytest.fixture
def sold() -> tuple[Sale, User]:
    """A sale whose last piece somebody has."""
    put_in_force("process")
    sale, holder = a_sale(stock=1), a_customer()
    place_order(customer=holder, sale=fresh(sale), quantity=1, key="k")
    return sale, holder


def test_a_sold_out_crowd_costs_one_look_at_who_has_an_order(sold, django_assert_num_queries):
    sale, holder = sold
    strangers, seen = [a_customer() for _ in range(3)], fresh(sale)
    policy.current()
    with django_assert_num_queries(1):
        for stranger in strangers:
            with pytest.raises(SoldOut):
                admit(sale=seen, customer_id=stranger.pk)
    with django_assert_num_queries(0):
        admit(sale=seen, customer_id=holder.pk)  # the form may be that of the order


def test_who_got_what_came_back_is_no_stranger(sold, monkeypatch) -> None:
    sale, holder = sold
    late = a_customer()
    assert in_vain(sale, late)
    cancel_order(order=Order.objects.get())
    place_order(customer=late, sale=fresh(sale), quantity=1, key="k")
    assert not in_vain(sale, late), "the stock has changed, and nobody has looked since"
    assert not in_vain(sale, a_customer()), "so it is for the purchase itself to look"
    monkeypatch.setattr(admission, "HOLDERS_PAUSE", 0)
    monkeypatch.setattr(admission, "NEWS_AGE", 0)  # it may all have come about in less
    assert not in_vain(sale, a_customer()), "more may be coming back"
    monkeypatch.setattr(admission, "_may_return", lambda slug: False)
    assert in_vain(sale, a_customer())
    assert not in_vain(sale, late)
    assert not in_vain(sale, holder)


def test_nobody_is_in_vain_for_sure_while_writes_leave_no_fence(sold) -> None:
    put_in_force("process", "naive")
    assert not in_vain(sold[0], a_customer())


def test_early_birds_are_refused_from_memory(django_assert_num_queries) -> None:
    put_in_force("process")
    sale = fresh(a_sale(opens_in=60))
    policy.current()
    with django_assert_num_queries(1):
        for customer in range(3):
            with pytest.raises(NotOpen):
                admit(sale=sale, customer_id=customer)
