"""Staff refund a paid order: money and units go back once. Without a provider, they mark it."""

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.core import mail
from django.test import Client
from django.utils import timezone

from loadtest.web.gateway import pay_at_once
from shop.administration.audit import audit_sale
from shop.administration.history import entry
from shop.administration.sale_management import fixed_fields
from shop.errors import InvalidTransition
from shop.mail.service import send_mail
from shop.models import Order, Payment, Sale, User
from shop.orders.addresses import mark_shipped, save_address
from shop.orders.service import cancel_order, pay_order
from shop.payments.service import UnitsShipped, mark_paid, refund_order, refund_payments
from shop.templatetags.shop import money
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
    stale = Order.objects.get()  # as another request read it before
    refund_order(order=order)
    assert (order.status, count(sale)) == ("refunded", (5, 0))
    assert Payment.objects.get().status == "refunding"
    for known in (order, stale):
        with pytest.raises(InvalidTransition):
            refund_order(order=known)
    assert count(sale) == (5, 0)
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


# --- without a payment provider ------------------------------------------------------------------


@pytest.fixture
def unpaid(sale: Sale, li: User, settings) -> Order:
    settings.PAYMENT_PROVIDER = "none"
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


def test_staff_mark_an_order_as_paid_and_refund_it_on_its_page(sale, unpaid, li) -> None:
    staff = staff_with("view_order", "change_order")
    assert "is marked as paid" in press(staff, unpaid, "mark_paid")
    unpaid.refresh_from_db()
    payment = Payment.objects.get()
    assert (unpaid.status, payment.status, payment.amount) == ("paid", "approved", unpaid.total)
    own = signed_in(li)
    assert f"{unpaid.get_absolute_url()}refund/" not in own.get(unpaid.get_absolute_url()).text
    answer = own.post(f"{unpaid.get_absolute_url()}refund/", {"idempotency_key": "k"})
    assert answer.status_code == 409, "the shop cannot return the money"

    assert "return the money where it was paid" in press(staff, unpaid, "refund")
    told = press(staff, unpaid, "refund", confirm=unpaid.number)
    assert "is marked as refunded. Return the money where it was paid." in told
    assert "Refunded at 20" in told
    returns = f"The shop will return {money(unpaid.total)} where you paid it."
    assert returns in own.get(unpaid.get_absolute_url()).text
    assert (refund_payments(), refund_payments()) == (1, 0)
    page = own.get(unpaid.get_absolute_url()).text
    assert (returns in page, "We refunded" in page) == (True, False), "staff have the money"
    User.objects.filter(pk=li.pk).update(email="li@example.com")
    assert send_mail() == 1
    assert "The shop will return your payment of ¥" in mail.outbox[0].body
    unpaid.refresh_from_db()
    assert (unpaid.status, Payment.objects.get().status, count(sale)) == (
        "refunded",
        "refunded",
        (5, 0),
    )
    said = LogEntry.objects.order_by("pk").values_list("object_id", "change_message")
    assert list(said) == [
        (str(unpaid.pk), entry("Marked as paid outside of the shop.")),
        (str(unpaid.pk), entry("Cancelled and refunded.")),
    ]


def test_provider_that_comes_later_returns_no_money_from_outside(unpaid, li, settings) -> None:
    mark_paid(order=unpaid)
    settings.PAYMENT_PROVIDER = "simulated"
    own, refund = signed_in(li), f"{unpaid.get_absolute_url()}refund/"
    assert refund not in own.get(unpaid.get_absolute_url()).text
    answer = own.post(refund, {"idempotency_key": "k"})
    assert (answer.status_code, Payment.objects.get().status) == (409, "approved")


def test_refund_of_an_online_payment_waits_for_its_provider(order, settings) -> None:
    settings.PAYMENT_PROVIDER = "none"
    staff = staff_with("view_order", "change_order")
    pages = press(staff, order, "refund"), press(staff, order, "refund", confirm=order.number)
    assert "where it was paid" not in "".join(pages), "the provider would return it again"
    assert "The payment provider returns the money" in pages[1]
    assert (refund_payments(), Payment.objects.get().status) == (0, "refunding")
    settings.PAYMENT_PROVIDER = "simulated"
    assert (refund_payments(), Payment.objects.get().status) == (1, "refunded")


UNPAYABLE = {
    "cancelled": lambda order: cancel_order(order=order),
    "time to pay is over": lambda order: Order.objects.update(pay_by=timezone.now()),
    "paid before": lambda order: mark_paid(order=order),
}


@pytest.mark.parametrize("case", UNPAYABLE)
def test_order_that_cannot_be_paid_is_not_marked(unpaid, case) -> None:
    UNPAYABLE[case](unpaid)
    before = list(Payment.objects.all())
    with pytest.raises(InvalidTransition):
        mark_paid(order=unpaid)
    assert list(Payment.objects.all()) == before


def test_order_is_not_marked_under_a_provider_or_without_permission(unpaid, settings) -> None:
    form = {"action": "mark_paid", "_selected_action": unpaid.pk}
    assert staff_with("view_order").post("/admin/shop/order/", form).status_code in (200, 302)
    settings.PAYMENT_PROVIDER = "simulated"
    staff = staff_with("view_order", "change_order")
    assert "Mark as paid" not in staff.get("/admin/shop/order/").text
    staff.post("/admin/shop/order/", form)
    with pytest.raises(InvalidTransition):
        mark_paid(order=unpaid)
    unpaid.refresh_from_db()
    assert (unpaid.status, Payment.objects.exists(), LogEntry.objects.exists()) == (
        "pending",
        False,
        False,
    )
