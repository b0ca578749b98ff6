"""The reference implementation with one row per unit, on MariaDB."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connection, connections
from django.test import RequestFactory

from loadtest.bench.commit import paused
from loadtest.bench.reference import units
from loadtest.load.http.buyers import Buyer, signed_in
from shop.errors import KeyReused, LimitReached, ShopError, SoldOut
from shop.models import CustomerQuota, Order, Sale
from tests.shop.making import a_customer, a_sale, fresh

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.only("mysql")]

BUYERS = 8
PAUSE_MS = 200
"""Longer than the buyers need to read, so that their transactions overlap."""


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS lab_unit")


def a_sale_of(count: int, **options: int) -> Sale:
    sale = fresh(a_sale(stock=count, **options))
    units.create_units(sale=sale, count=count)
    return sale


def breaches(sale: Sale, initial: int, acknowledged: int) -> list[str]:
    return list(units.breaches(sale=sale, initial=initial, acknowledged=acknowledged))


def at_once(sale: Sale) -> Counter[str]:
    """Count the outcomes of purchases whose transactions overlap before their COMMIT."""
    customers, gate = [a_customer().pk for _ in range(BUYERS)], Barrier(BUYERS)

    def buy(customer: int) -> str:
        connection.ensure_connection()
        gate.wait(30)
        try:
            units.place_order(customer_id=customer, sale=sale, quantity=1, key="k")
        except ShopError as error:
            return error.code
        else:
            return "ok"
        finally:
            connections.close_all()

    with paused(sale, PAUSE_MS, has_rows=True), ThreadPoolExecutor(BUYERS) as pool:
        return Counter(pool.map(buy, customers))


def test_overlapping_purchases_take_different_units() -> None:
    sale = a_sale_of(5)
    assert at_once(sale) == {"ok": 5, "sold_out": 3}
    assert breaches(sale, 5, 5) == []


def test_control_without_skip_locked_sells_a_unit_twice(monkeypatch) -> None:
    monkeypatch.setattr(units, "FIND", units.FIND.replace("FOR UPDATE SKIP LOCKED", ""))
    sale = a_sale_of(5)
    sold = at_once(sale)["ok"]
    assert any("units taken" in breach for breach in breaches(sale, 5, sold))


def test_key_limit_and_stock_are_exact() -> None:
    sale, customer = a_sale_of(4, limit=3), a_customer().pk

    def buy(quantity: int, key: str, who: int = customer) -> str:
        return units.place_order(customer_id=who, sale=sale, quantity=quantity, key=key)

    first = buy(2, "a")
    assert buy(2, "a") == first
    with pytest.raises(KeyReused):
        buy(1, "a")
    with pytest.raises(LimitReached):
        buy(2, "b")
    buy(1, "b")
    with pytest.raises(LimitReached):
        buy(4, "c")
    with pytest.raises(SoldOut):
        buy(2, "d", a_customer().pk)
    assert breaches(sale, 4, 2) == []
    assert CustomerQuota.objects.get(sale=sale).taken == 3


def test_audit_finds_an_order_without_its_unit() -> None:
    sale = a_sale_of(2)
    units.place_order(customer_id=a_customer().pk, sale=sale, quantity=1, key="k")
    Order.objects.filter(sale=sale).update(quantity=2)
    found = breaches(sale, 2, 1)
    assert found == [
        "1 of 2 units taken, 2 promised of 2",
        "1 orders without their units or their quota",
    ]


def test_form_with_a_token_is_served_and_others_are_refused() -> None:
    sale = a_sale_of(1)
    [buyer] = signed_in([a_customer()])
    serve = units.units_middleware(lambda request: pytest.fail("not served"))

    def send(sender: Buyer, session: str) -> int:
        request = RequestFactory().post(
            units.PATH.format(sale.slug),
            sender.form(sale),
            content_type="application/x-www-form-urlencoded",
        )
        request.COOKIES["sessionid"] = session
        return serve(request).status_code

    assert send(buyer, "another") == 401
    assert send(buyer, buyer.session) == 201
    assert send(buyer, buyer.session) == 201
    assert breaches(sale, 1, 1) == []
