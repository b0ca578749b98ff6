"""The door of a sale."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from inventory import services as stock
from shop import admission
from shop.admission import in_line, sale_at_door
from shop.errors import Crowded, NotFound
from tests.shop.making import a_sale

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _nobody_has_looked(monkeypatch) -> None:
    monkeypatch.setattr(admission, "_seen", {})


def test_a_look_is_shared_for_a_moment(django_assert_num_queries) -> None:
    sale = a_sale()
    with django_assert_num_queries(1):
        assert sale_at_door(slug=sale.slug) is sale_at_door(slug=sale.slug)


def test_the_door_reopens_when_stock_returns(monkeypatch) -> None:
    sale = a_sale(stock=0)
    clock = [100.0]
    monkeypatch.setattr(admission, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    assert sale_at_door(slug=sale.slug).phase() == sale.Phase.SOLD_OUT
    stock.restock(stock_id=sale.stock_id, quantity=1)
    clock[0] += 2 * admission.MAX_AGE
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
        with pytest.raises(Crowded), in_line(sale_id=1):
            pass
        with in_line(sale_id=2):
            pass  # another sale's line is another line
        leave.set()
        for each in waiting:
            each.result(10)
    with in_line(sale_id=1):
        pass
    assert not admission._waiting
