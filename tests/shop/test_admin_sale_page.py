"""The page of a sale in the admin: its report, its actions, the export and the packing list."""

import csv
import re
import tracemalloc
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from inventory.models import StockMovement
from shop.administration import order_export, sale_report
from shop.administration.sale_management import restock_sale
from shop.administration.sale_report import report_of
from shop.models import DeliveryAddress, Order, Payment, Sale, User
from shop.orders.addresses import save_address
from shop.orders.service import cancel_order, pay_order
from shop.payments.service import start_payment
from tests.shop.admin_pages import messages
from tests.shop.making import ADDRESS, a_sale, fresh, staff_with
from tests.shop.purchases import buy

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]


@pytest.fixture
def sold_out() -> Sale:
    """A sale of 4 units: two paid, one cancelled and one unpaid, a second after the other."""
    sale = a_sale(stock=4)
    for name in "abcd":
        buy(sale, customer=User.objects.create(username=name))
    orders = Order.objects.order_by("pk")
    for order in orders[:2]:
        pay_order(order=order)
    cancel_order(order=orders[2])
    for number, row in enumerate(StockMovement.objects.filter(stock=sale.stock_id)):
        later = sale.opens_at + timedelta(seconds=number or 60)  # stocked by a late clock
        StockMovement.objects.filter(pk=row.pk).update(created_at=later)
    return fresh(sale)


def page_of(sale: Sale, part: str = "change/") -> str:
    return f"/admin/shop/sale/{sale.pk}/{part}"


def test_report_tells_what_became_of_the_units(amy, sold_out) -> None:
    late = start_payment(order=Order.objects.get(customer__username="d"))
    Payment.objects.filter(pk=late.pk).update(status=Payment.Status.REFUNDED)
    report = report_of(sale=sold_out)
    assert [(one.label, one.orders, float(one.amount)) for one in report.outcomes] == [
        ("Waiting for payment", 1, 9.9),
        ("Paid", 2, 19.8),
        ("Cancelled", 1, 9.9),
        ("Payments refunded", 1, 9.9),
    ]
    assert (report.offered, report.sold_out_after, report.waiting) == (4, 4.0, None)
    page = amy.get(page_of(sold_out)).text
    for text in ("¥19.80", "of 4", "4 s", "<polyline", f"?sale__exact={sold_out.pk}"):
        assert text in page, text
    Order.objects.filter(pk=late.order_id).update(status=Order.Status.REFUNDED)
    labels = [one.label for one in report_of(sale=sold_out).outcomes]
    assert labels == ["Paid", "Cancelled", "Refunded"], "their payments are the same"
    numbers = Order.objects.order_by("-pk").values_list("number", flat=True)
    assert re.findall(r'/change/">(\w{16})</a>', page) == list(numbers)
    assert numbers[0] not in staff_with("view_sale").get(page_of(sold_out)).text


def test_report_sums_each_currency(amy, sold_out) -> None:
    for order in Order.objects.order_by("pk")[:2]:  # as before a change of CURRENCY
        Order.objects.filter(pk=order.pk).update(currency="EUR")
        values = {"amount": 9, "answer_by": order.pay_by, "status": Payment.Status.REFUNDED}
        for currency in ("EUR", "CNY"):
            Payment.objects.create(order=order, currency=currency, **values)
    Order.objects.filter(status="cancelled").update(status="paid")
    outcomes = report_of(sale=sold_out).outcomes
    assert [(one.label, one.orders, float(one.amount), one.currency) for one in outcomes] == [
        ("Waiting for payment", 1, 9.9, "CNY"),
        ("Paid", 1, 9.9, "CNY"),
        ("Paid", 2, 19.8, "EUR"),
        ("Payments refunded", 2, 18, "CNY"),
        ("Payments refunded", 2, 18, "EUR"),
    ]
    assert "€19.80" in amy.get(page_of(sold_out)).text


def test_units_that_staff_remove_are_not_sold() -> None:
    sale = a_sale(stock=4)
    restock_sale(sale=sale, quantity=-4)
    assert report_of(sale=sale).sold_out_after is None


def test_curve_has_a_step_for_each_purchase_and_return(sold_out) -> None:
    report = report_of(sale=sold_out)
    assert report.ticks == ["0 s", "2 s", "4 s"]
    points = [tuple(map(float, one.split(","))) for one in report.points.split()]
    assert points == sorted(points, key=lambda point: point[0])
    heights = list(dict.fromkeys(y for _x, y in points))
    assert heights == [180, 135, 90, 45, 0], "sold out at the top"
    restock_sale(sale=sold_out, quantity=4)
    last = StockMovement.objects.order_by("pk").last()
    later = sold_out.opens_at + timedelta(seconds=9)
    StockMovement.objects.filter(pk=last.pk).update(created_at=later)
    assert report_of(sale=sold_out).sold_out_after == 4.0, "the first time"
    assert report_of(sale=a_sale(opens_in=60)).points == ""


def test_report_holds_no_row_of_each_movement_and_has_long_steps(monkeypatch) -> None:
    monkeypatch.setattr(sale_report, "CHUNK", 1000)
    monkeypatch.setattr(sale_report, "STEPS", 10)
    sale = a_sale(stock=20_000)
    StockMovement.objects.bulk_create(
        StockMovement(stock=sale.stock, delta=-1, reason="reserved", order_number=str(number))
        for number in range(20_000)
    )
    tracemalloc.start()
    report = report_of(sale=sale)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_500_000, "5 MB before"
    assert (report.top, report.sold_out_after is None) == (20_000, False)
    points = report.points.split()
    assert (points[-1], len(points) <= 2 + 2 * 10) == ("600,0.0", True)


def test_action_returns_to_the_page_of_the_sale(amy) -> None:
    sale = a_sale(stock=3)
    form = {"_selected_action": sale.pk, "back": sale.pk}
    done = amy.post("/admin/shop/sale/", {**form, "action": "restock", "units": 5})
    assert done["Location"] == page_of(sale)
    assert fresh(sale).left == 8
    asked = amy.post("/admin/shop/sale/", {**form, "action": "close_now"})
    assert f'name="back" value="{sale.pk}"' in asked.text
    assert f'class="closelink" href="{page_of(sale)}"' in asked.text
    closed = {**form, "action": "close_now", "confirm": sale.slug}
    assert amy.post("/admin/shop/sale/", closed)["Location"] == page_of(sale)
    assert fresh(sale).phase() == Sale.Phase.ENDED
    elsewhere = {**form, "back": "//evil.example", "action": "open_now"}
    assert amy.post("/admin/shop/sale/", elsewhere)["Location"] == "/admin/shop/sale/"


def exported(client: Client, sale: Sale) -> list[dict[str, str]]:
    response = client.get(page_of(sale, "orders.csv"))
    assert response["Content-Disposition"] == f'attachment; filename="{sale.slug}-orders.csv"'
    text = b"".join(response.streaming_content).decode("utf-8-sig")
    return list(csv.DictReader(text.splitlines()))


def test_export_has_every_order_of_the_sale_and_no_formula(amy, sold_out, monkeypatch) -> None:
    buy(a_sale())
    hostile = {"name": "=HYPERLINK(1)", "street": " ＝1+1", "city": "-1", "country": "@x"}
    order = Order.objects.get(customer__username="a")
    User.objects.filter(pk=order.customer_id).update(email="+a@example.com", username='a,"b')
    save_address(order=order, lines={**ADDRESS, **hostile})
    whole = exported(amy, sold_out)
    monkeypatch.setattr(order_export, "CHUNK", 3)
    with CaptureQueriesContext(connection) as queries:
        rows = exported(amy, sold_out)
    assert rows == whole
    assert sum('"shop_order"' in one["sql"].replace("`", '"') for one in queries) == 3
    assert [row["status"] for row in rows] == ["paid", "paid", "cancelled", "pending"]
    first = rows[0]
    assert (first["customer"], first["email"]) == ('a,"b', "'+a@example.com")
    assert {name: first[name] for name in hostile} == {n: f"'{v}" for n, v in hostile.items()}
    assert (first["phone"], first["postcode"]) == (f"'{ADDRESS['phone']}", ADDRESS["postcode"])
    assert (first["unit_price"], first["currency"], first["shipped_at"]) == ("9.90", "CNY", "")


def test_packing_list_has_paid_orders_and_marks_the_ticked_ones(amy, sold_out) -> None:
    paid = Order.objects.filter(status=Order.Status.PAID)
    for order in Order.objects.filter(sale=sold_out, status__in=Order.LIVE):
        if order != paid[0]:
            save_address(order=order, lines=ADDRESS)
    assert "Nothing to pack." in amy.get(page_of(a_sale(), "packing/")).text
    page = amy.get(page_of(sold_out, "packing/")).text
    assert re.findall(r"<code>(\w+)</code>", page) == [paid[1].number]
    assert "1 paid order has no address yet." in page
    printed = re.findall(r'type="checkbox" name="printed" value="([^"]+)" checked', page)
    done = amy.post(page_of(sold_out, "packing/"), {"printed": [*printed, f"{paid[0].pk}-1"]})
    assert "1 order is marked as shipped. 1 order was not marked" in messages(done)
    assert DeliveryAddress.objects.exclude(shipped_at=None).get().order == paid[1]
    assert "Tick the orders" in messages(amy.post(page_of(sold_out, "packing/")))
    for malformed in ("1", "1-x", f"{'9' * 30}-1", f"1-{'9' * 30}"):
        sent = {"printed": malformed}
        assert amy.post(page_of(sold_out, "packing/"), sent).status_code == 400


def test_personal_data_needs_permissions(sold_out) -> None:
    orders = ("view_sale", "view_order", "view_deliveryaddress")
    for client, seen, shipped in (
        (staff_with(), 403, 403),
        (staff_with("view_sale", "view_order"), 403, 403),
        (staff_with(*orders), 200, 403),
        (staff_with(*orders, "change_deliveryaddress"), 200, 302),
    ):
        assert client.get(page_of(sold_out, "orders.csv")).status_code == seen
        assert client.get(page_of(sold_out, "packing/")).status_code == seen
        assert client.post(page_of(sold_out, "packing/")).status_code == shipped
    page = staff_with("view_sale").get(page_of(sold_out)).text
    assert "Sold out after" in page
    assert "orders.csv" not in page
    assert "Add stock" not in page
