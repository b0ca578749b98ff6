"""Staff refund a paid order: money and units go back once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections
from django.utils import timezone

from loadtest.web.gateway import pay_at_once
from shop.administration.audit import audit_sale
from shop.administration.sale_management import fixed_fields
from shop.errors import InvalidTransition
from shop.models import Order, Payment, Sale, User
from shop.orders.addresses import mark_shipped, save_address
from shop.orders.service import cancel_order, pay_order
from shop.payments.service import UnitsShipped, refund_order, refund_payments
from tests.shop.making import ADDRESS, a_sale, signed_in, staff_with
from tests.shop.purchases import buy

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]


@pytest.fixture
def sale() -> Sale:
    return a_sale(stock=5)


@pytest.fixture
def order(sale: Sale, li: User) -> Order:
    order = buy(sale, customer=li, quantity=2).order
    pay_at_once(order=order)
    return order


def count(sale: Sale) -> tuple[int, int]:
    audit = audit_sale(sale=sale)
    assert audit.ok, audit.breaches
    return audit.available, audit.sold


def ship(order: Order) -> None:
    save_address(order=order, lines=ADDRESS)
    mark_shipped(sale=order.sale, printed={order.pk: 1})


def end(order: Order) -> None:
    Sale.objects.update(closes_at=timezone.now())


@pytest.mark.parametrize("has_ended", [False, True])
def test_refund_returns_money_and_units_once(sale, order, li, has_ended) -> None:
    if has_ended:
        end(order)
    refund_order(order=order)
    assert (order.status, count(sale)) == ("refunded", (5, 0))
    assert Payment.objects.get().status == "refunding"
    with pytest.raises(InvalidTransition):
        refund_order(order=order)
    assert (refund_payments(), refund_payments()) == (1, 0)
    payment = Payment.objects.get()
    assert payment.status == "refunded"
    assert payment.closed_at < payment.refund_started_at < payment.refunded_at
    if not has_ended:  # the quota went back as well
        assert buy(sale, customer=li, quantity=5, key="again").order.quantity == 5


@pytest.mark.parametrize("has_ended", [False, True])
def test_units_of_a_shipped_order_are_not_sold_again(sale, order, has_ended) -> None:
    ship(order)
    if has_ended:
        end(order)
    staff = staff_with("view_order", "change_order")
    page = staff.get(f"/admin/shop/order/{order.pk}/change/").text
    assert ('value="refund"' in page) == has_ended
    assert ("Refund it after the sale." in page) == (not has_ended)
    form = {"action": "refund", "_selected_action": order.pk, "confirm": order.number}
    asked = staff.post("/admin/shop/order/", {**form, "confirm": "x"}, follow=True).text
    assert ("Refund it after the sale." in asked) == (not has_ended), "nothing to type in"
    assert ('name="confirm"' in asked) == has_ended
    said = staff.post("/admin/shop/order/", form, follow=True).text
    assert ("Refund it after the sale." in said) == (not has_ended)
    order.refresh_from_db()
    assert order.status == ("refunded" if has_ended else "paid")
    assert Payment.objects.get().status == ("refunding" if has_ended else "approved")
    assert count(sale) == ((5, 0) if has_ended else (3, 2))
    assert ("closes_at" in fixed_fields(sale=sale)) == has_ended, "a later end would sell them"


def test_sale_that_got_a_later_end_meanwhile_keeps_a_shipped_order(sale, order) -> None:
    ship(order)
    order.sale.closes_at = timezone.now()  # as another request read it before
    with pytest.raises(UnitsShipped):
        refund_order(order=order)
    assert count(sale) == (3, 2)


NOT_PAID = {
    "pending": lambda order: None,
    "cancelled": lambda order: cancel_order(order=order),
    "paid without a payment": lambda order: pay_order(order=order),
}


@pytest.mark.parametrize("case", NOT_PAID)
def test_order_without_a_payment_is_not_refunded(sale, case) -> None:
    order = buy(sale).order
    NOT_PAID[case](order)
    before = order.status, count(sale)
    with pytest.raises(InvalidTransition):
        refund_order(order=order)
    order.refresh_from_db()
    assert (order.status, count(sale)) == before


@pytest.mark.django_db(transaction=True)
def test_concurrent_refunds_return_the_units_once(sale, order) -> None:
    all_four = threading.Barrier(4)

    def refund(_: int) -> bool:
        try:
            all_four.wait(20)
            refund_order(order=Order.objects.get(pk=order.pk))
            return True
        except InvalidTransition:
            return False
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(refund, range(4))) == [False, False, False, True]
    assert count(sale) == (5, 0)


KEPT = {
    "shipped": (ship, "li", 409),
    "sale has ended": (end, "li", 409),
    "of someone else": (lambda order: None, "wang", 404),
    "refunded by staff": (lambda order: refund_order(order=order), "li", 409),
}


@pytest.mark.parametrize("case", KEPT)
def test_customer_cannot_return_an_order(sale, order, li, case) -> None:
    change, name, status = KEPT[case]
    change(order)
    before = count(sale), Payment.objects.get().status
    customer = signed_in(li if name == "li" else User.objects.create(username=name))
    page = order.get_absolute_url()
    assert customer.post(f"{page}refund/", {"idempotency_key": "k"}).status_code == status
    assert (count(sale), Payment.objects.get().status) == before
    assert f"{page}refund/" not in customer.get(page).text


def test_customer_returns_a_paid_order_once(sale, order, li) -> None:
    customer = signed_in(li)
    url = f"{order.get_absolute_url()}refund/"
    assert url in customer.get(order.get_absolute_url()).text
    for _ in range(2):
        done = customer.post(url, {"idempotency_key": "k"})
        assert (done.status_code, done.headers["Location"]) == (303, order.get_absolute_url())
    assert (count(sale), Payment.objects.get().status) == ((5, 0), "refunding")
    page = customer.get(order.get_absolute_url()).text
    assert "This order was cancelled" in page
    assert "We are refunding" in page
    assert url not in page


def test_staff_need_the_permission_and_the_number(order) -> None:
    form = {"action": "refund", "_selected_action": order.pk}
    reader = staff_with("view_order")
    assert "Cancel and refund" not in reader.get("/admin/shop/order/").text
    reader.post("/admin/shop/order/", {**form, "confirm": order.number})
    staff = staff_with("view_order", "change_order")
    asked = staff.post("/admin/shop/order/", form).text
    assert (order.number in asked, "Shipped" in asked, "Paid outside" in asked) == (1, 0, 0)
    assert staff.post("/admin/shop/order/", {**form, "confirm": "x"}).status_code == 400
    order.refresh_from_db()
    assert order.status == "paid"
    for expected in (
        "The payment provider returns the money",
        "It has no payment that can be refunded",
    ):
        form["confirm"] = order.number
        assert expected in staff.post("/admin/shop/order/", form, follow=True).text
    order.refresh_from_db()
    assert order.status == "refunded"
