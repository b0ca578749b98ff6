"""Without a payment provider, staff mark orders as paid; their refund is a matter of the staff."""

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.core import mail
from django.test import Client
from django.utils import timezone

from loadtest.web.gateway import pay_at_once
from shop.administration.history import entry
from shop.errors import InvalidTransition
from shop.mail.service import send_mail
from shop.models import Order, Payment, Sale, User
from shop.orders.service import cancel_order
from shop.payments.service import mark_paid, refund_payments
from shop.templatetags.shop import money
from tests.shop.making import a_sale, signed_in, staff_with
from tests.shop.payments.test_refunds import count
from tests.shop.purchases import buy

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]


@pytest.fixture(autouse=True)
def _no_provider(settings) -> None:
    settings.PAYMENT_PROVIDER = "none"


@pytest.fixture
def sale() -> Sale:
    return a_sale(stock=5)


@pytest.fixture
def order(sale: Sale, li) -> Order:
    return buy(sale, customer=li, quantity=2).order


def press(staff: Client, order: Order, action: str, **sent: str) -> str:
    """Press a button of the order's page in the admin; return the page that follows."""
    page = f"/admin/shop/order/{order.pk}/change/"
    (form,) = re.findall(
        r'<form method="post" action="/admin/shop/order/".*?</form>', staff.get(page).text, re.S
    )
    assert f'name="action" value="{action}"' in form
    hidden = dict(
        re.findall(r'<input type="hidden" name="(_selected_action|back)" value="(\d+)">', form)
    )
    told = staff.post("/admin/shop/order/", {**hidden, "action": action, **sent}, follow=True)
    assert sent == {} or [url for url, _ in told.redirect_chain] == [page]
    return told.text


def test_staff_mark_an_order_as_paid_and_refund_it_on_its_page(sale, order, li) -> None:
    staff = staff_with("view_order", "change_order")
    assert "is marked as paid" in press(staff, order, "mark_paid")
    order.refresh_from_db()
    payment = Payment.objects.get()
    assert (order.status, payment.status, payment.amount) == ("paid", "approved", order.total)
    own = signed_in(li)
    assert f"{order.get_absolute_url()}refund/" not in own.get(order.get_absolute_url()).text
    answer = own.post(f"{order.get_absolute_url()}refund/", {"idempotency_key": "k"})
    assert answer.status_code == 409, "the shop cannot return the money"

    assert "return the money where it was paid" in press(staff, order, "refund")
    told = press(staff, order, "refund", confirm=order.number)
    assert "is marked as refunded. Return the money where it was paid." in told
    assert "Refunded at 20" in told
    returns = f"The shop will return {money(order.total)} where you paid it."
    assert returns in own.get(order.get_absolute_url()).text
    assert (refund_payments(), refund_payments()) == (1, 0)
    page = own.get(order.get_absolute_url()).text
    assert (returns in page, "We refunded" in page) == (True, False), "staff have the money"
    User.objects.filter(pk=li.pk).update(email="li@example.com")
    assert send_mail() == 1
    assert "The shop will return your payment of ¥" in mail.outbox[0].body
    order.refresh_from_db()
    assert (order.status, Payment.objects.get().status, count(sale)) == (
        "refunded",
        "refunded",
        (5, 0),
    )
    said = LogEntry.objects.order_by("pk").values_list("object_id", "change_message")
    assert list(said) == [
        (str(order.pk), entry("Marked as paid outside of the shop.")),
        (str(order.pk), entry("Cancelled and refunded.")),
    ]


def test_provider_that_comes_later_returns_no_money_from_outside(sale, order, li, settings) -> None:
    mark_paid(order=order)
    settings.PAYMENT_PROVIDER = "simulated"
    own, refund = signed_in(li), f"{order.get_absolute_url()}refund/"
    assert refund not in own.get(order.get_absolute_url()).text
    answer = own.post(refund, {"idempotency_key": "k"})
    assert (answer.status_code, Payment.objects.get().status) == (409, "approved")


def test_refund_of_an_online_payment_waits_for_its_provider(order, settings) -> None:
    settings.PAYMENT_PROVIDER = "simulated"
    pay_at_once(order=order)
    settings.PAYMENT_PROVIDER = "none"
    staff = staff_with("view_order", "change_order")
    pages = press(staff, order, "refund"), press(staff, order, "refund", confirm=order.number)
    assert "where it was paid" not in "".join(pages), "the provider would return it again"
    assert "The payment provider returns the money" in pages[1]
    assert (refund_payments(), Payment.objects.get().status) == (0, "refunding")
    settings.PAYMENT_PROVIDER = "simulated"
    assert (refund_payments(), Payment.objects.get().status) == (1, "refunded")


def expire(order: Order) -> None:
    Order.objects.update(pay_by=timezone.now())


UNPAYABLE = {
    "cancelled": lambda order: cancel_order(order=order),
    "time to pay is over": expire,
    "paid before": lambda order: mark_paid(order=order),
}


@pytest.mark.parametrize("case", UNPAYABLE)
def test_order_that_cannot_be_paid_is_not_marked(order, case) -> None:
    UNPAYABLE[case](order)
    before = list(Payment.objects.all())
    with pytest.raises(InvalidTransition):
        mark_paid(order=order)
    assert list(Payment.objects.all()) == before


def test_order_is_not_marked_under_a_provider_or_without_permission(order, settings) -> None:
    form = {"action": "mark_paid", "_selected_action": order.pk}
    assert staff_with("view_order").post("/admin/shop/order/", form).status_code in (200, 302)
    settings.PAYMENT_PROVIDER = "simulated"
    staff = staff_with("view_order", "change_order")
    assert "Mark as paid" not in staff.get("/admin/shop/order/").text
    staff.post("/admin/shop/order/", form)
    with pytest.raises(InvalidTransition):
        mark_paid(order=order)
    order.refresh_from_db()
    assert (order.status, Payment.objects.exists(), LogEntry.objects.exists()) == (
        "pending",
        False,
        False,
    )
