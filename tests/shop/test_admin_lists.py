"""The admin's lists of large tables: their searches, their counts and their number of queries."""

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from inventory.models import Product
from locking.admin import base
from locking.models import JobRun
from shop.administration.sale_management import restock_sale
from shop.models import DeliveryAddress, Order, User
from shop.orders.addresses import mark_shipped, save_address
from shop.payments.service import start_payment
from tests.shop.admin_pages import fields_of
from tests.shop.making import ADDRESS, a_customer, a_sale, staff_with
from tests.shop.purchases import buy

pytestmark = [pytest.mark.django_db, pytest.mark.stores]
LISTS = ("shop/order", "shop/user", "shop/payment", "inventory/stockmovement", "locking/jobrun")


@pytest.fixture
def orders() -> list[Order]:
    sale = a_sale()
    for number in range(3):
        name = f"wang{number}"
        buy(sale, customer=User.objects.create(username=name, email=f"{name}@example.com"))
    return list(Order.objects.order_by("-pk"))


def listed(amy: Client, path: str, **query: str) -> list[object]:
    return list(amy.get(f"/admin/{path}/", query).context["cl"].result_list)


def test_search_finds_whole_values_first_and_then_beginnings(amy, orders) -> None:
    newest = orders[0]
    User.objects.create(username="wang")
    save_address(order=newest, lines={**ADDRESS, "name": "韩梅梅", "phone": "+44 20 7946 0958"})
    for text, found in {
        newest.number: [newest],
        newest.number[:8]: [newest],
        newest.sale.slug: orders,
        "wang2": [newest],
        "wang2@example.com": [newest],
        "+44 20 7946 0958": [newest],
        "韩": [newest],
        f" {newest.number} ": [newest],
        "wang": orders,  # that customer has no order
        "ang2": [],
        "": orders,
    }.items():
        assert listed(amy, "shop/order", q=text) == found, text
    assert [user.username for user in listed(amy, "shop/user", q="wang")] == ["wang"]
    assert listed(staff_with("view_order"), "shop/order", q="韩梅梅") == []
    assert listed(amy, "shop/rejectedreservation", q="no number") == []


@pytest.mark.only("postgresql")
def test_search_by_a_beginning_uses_an_index_of_postgresql(db) -> None:
    searched = {Order: ["number"], User: ["username", "email"], DeliveryAddress: ["phone", "name"]}
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    for model, columns in searched.items():
        for column in columns:
            plan = model.objects.filter(**{f"{column}__istartswith": "x"}).explain()
            assert f"_{column}_begins" in plan
    assert "Seq Scan" in User.objects.filter(first_name__istartswith="x").explain(), "the control"


def test_newest_order_comes_first_and_its_page_names_each_time(amy, orders) -> None:
    oldest = orders[0]  # by its number, the newest
    Order.objects.filter(pk=oldest.pk).update(created_at="2026-01-01T00:00Z")
    assert listed(amy, "shop/order") == [*orders[1:], oldest]
    page = f"/admin/shop/order/{oldest.pk}/change/"
    assert "Waiting for payment, until 20" in amy.get(page).text
    assert "All times are UTC+8." in amy.get(page).text.split('id="content"')[0]
    assert "2026-01-01 08:00:00" in amy.get(page).text
    assert "Delivery address" not in amy.get(page).text
    save_address(order=oldest, lines=ADDRESS)
    assert ADDRESS["street"] in amy.get(page).text


def test_orders_of_a_sale_name_it_and_the_index_counts_those_to_ship(amy, orders) -> None:
    unpaid, paid, shipped = orders
    for order in orders:
        save_address(order=order, lines=ADDRESS)
    Order.objects.exclude(pk=unpaid.pk).update(status=Order.Status.PAID)
    mark_shipped(sale=shipped.sale, printed={shipped.pk: 1})
    page = amy.get("/admin/shop/order/", {"sale__exact": paid.sale_id, "to_ship": "1"})
    assert f"<h2>{paid.sale}</h2>" in page.text
    assert list(page.context["cl"].result_list) == [paid]
    due = amy.get("/admin/").context["due"]
    assert [count for _title, count, _page in due] == [1, 1, 1]
    found = [list(amy.get(page).context["cl"].result_list) for _title, _count, page in due[1:]]
    assert found == [[paid], [unpaid]]
    assert staff_with("view_sale").get("/admin/").context["due"] == due[:1]
    assert "◷ Waiting for payment" in amy.get("/admin/shop/order/").text
    DeliveryAddress.objects.filter(pk=unpaid.pk).delete()
    everything = amy.get("/admin/shop/order/", headers={"accept-language": "zh-hans"}).text
    assert "发货时间" in everything
    column = re.findall(r'<td class="field-shipped_at[^>]*>([^<]*)<', everything)
    assert [text == "-" for text in column] == [True, True, False]
    for malformed in ("", "x"):
        assert amy.get("/admin/shop/order/", {"sale__exact": malformed}).status_code in (200, 302)


def test_payments_of_an_order_are_linked_from_its_page(amy, orders) -> None:
    for order in orders:
        start_payment(order=order)
    page = amy.get(f"/admin/shop/order/{orders[1].pk}/change/").text
    (link,) = re.findall('href="(/admin/shop/payment/[^"]*)"', page)
    assert list(amy.get(link).context["cl"].result_list) == list(orders[1].payments.all())


def test_number_above_64_bits_is_no_error(amy) -> None:
    """SQLite cannot compare it, a server can."""
    sent = {"action": "refund", "_selected_action": 10**30}
    expected = [400] * 3 if connection.vendor == "sqlite" else [200, 200, 302]
    assert expected == [
        amy.get(f"/admin/shop/order/?sale__exact={10**30}").status_code,
        amy.get(f"/admin/inventory/product/?id__in=1,{10**30}").status_code,
        amy.post("/admin/shop/order/", sent).status_code,
    ]


def test_what_an_admin_does_not_check_is_refused(amy, orders) -> None:
    """Django takes any number for a year, and Celery Beat looks for a name that was too long.

    PostgreSQL accepts no NUL in a text, the other databases do.
    """
    assert amy.get("/admin/shop/order/?status=a%00b").status_code < 500
    assert amy.get("/admin/shop/order/?created_at__year=99999").status_code == 400
    form = {"name": "x", "task": "x" * 201, "args": "[]", "kwargs": "{}"}
    assert amy.post("/admin/django_celery_beat/periodictask/add/", form).status_code == 400
    for path, action in (("shop/order", "refund"), ("shop/user", "delete_selected")):
        for chosen in ("abc", "", "1 2"):
            sent = {"action": action, "_selected_action": [chosen, orders[0].pk]}
            assert amy.post(f"/admin/{path}/", sent).status_code == 400, (path, chosen)


def test_units_that_staff_remove_are_called_removed(amy) -> None:
    sale = a_sale()
    assert restock_sale(sale=sale, quantity=5)
    assert restock_sale(sale=sale, quantity=-5)
    buy(sale)
    moved = [str(one) for one in listed(amy, "inventory/stockmovement")]
    assert moved == ["-1 reserved for an order", "-5 removed", "+5 stocked", "+10 stocked"]
    assert amy.get("/admin/inventory/stockmovement/").text.count(str(sale.product)) >= len(moved)


def test_list_counts_and_pages_through_a_limited_number_of_rows(amy, orders, monkeypatch) -> None:
    monkeypatch.setattr(base, "COUNTED", 2)
    page = amy.get("/admin/shop/order/")
    assert "2+ orders" in page.text
    assert str(page.context["cl"].result_count) == "2+"
    monkeypatch.setattr(base, "COUNTED", 3)
    assert str(amy.get("/admin/shop/order/").context["cl"].result_count) == "3"


@pytest.mark.parametrize("path", LISTS)
def test_list_takes_few_queries_and_sorts_by_an_index(path: str, amy, orders) -> None:
    for number in range(20):
        a_customer()
        JobRun.objects.create(
            digest=str(number),
            task="t",
            scheduled_for="2026-01-01T00:00Z",
            lease_until="2026-01-01T00:00Z",
            sent_at="2026-01-01T00:00Z",
        )
    with CaptureQueriesContext(connection) as queries:
        assert listed(amy, path) or path == "shop/payment"
    assert len(queries) <= 9, "one reads the lock policy, which a process keeps for a second"
    joins = [query["sql"] for query in queries if "JOIN" in query["sql"]]
    assert not [sql for sql in joins if "auth_group" not in sql], "a join sorts the whole table"


def test_older_page_of_a_product_keeps_what_another_page_saved(amy):
    product, other = a_sale().product, a_sale().product
    page, listed = f"/admin/inventory/product/{product.pk}/change/", "/admin/inventory/product/"
    older, older_list = fields_of(amy.get(page)), fields_of(amy.get(listed))
    assert amy.post(page, {**older, "price": "19.00"}).status_code == 302
    assert amy.post(page, {**older, "description": "Boils."}).status_code == 302
    Product.objects.filter(pk=product.pk).update(is_listed=False)
    row = next(n for n in range(2) if older_list[f"form-{n}-id"] == str(other.pk))
    amy.post(listed, {**older_list, f"form-{row}-is_listed": "", "_save": "Save"})
    product.refresh_from_db()
    assert (str(product.price), product.description) == ("19.00", "Boils.")
    assert list(Product.objects.filter(is_listed=True)) == []
    assert ">¥19<" in amy.get(listed).text
