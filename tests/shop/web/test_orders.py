"""The order page says what is going on, and its price stays; the header counts the time to pay."""

import re
from datetime import timedelta
from decimal import Decimal

import pytest
from django.test import Client, override_settings
from django.utils import timezone

from inventory.models import StockMovement
from loadtest.web.gateway import pay_at_once
from shop.models import Order, Payment, Sale
from shop.orders.addresses import mark_shipped, save_address
from shop.orders.service import cancel_order
from shop.payments.service import refund_order, start_payment
from shop.purchase import admission
from shop.urls import urlpatterns
from tests.shop import purchases
from tests.shop.making import ADDRESS, a_sale, buy, put_in_force, signed_in
from tests.shop.queued import consume

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("in_force")]

BADGE = re.compile(r"<b>(\d+)</b> min to pay")


def text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def headline(page: str) -> str:
    return text(page.split("<h1>")[1].split("</h1>")[0])


def steps(page: str) -> list[tuple[str, bool]]:
    """Return each step without its mark and time, and whether it is the current one."""
    shown = page.split('<ol class="steps"')[1].split("</ol>")[0]
    shown = re.sub(r'<span class="mark".*?</span>|<small.*?</small>', "", shown)
    items = re.findall(r"<li([^>]*)>(.*?)</li>", shown, re.S)
    return [(text(label), 'aria-current="step"' in attributes) for attributes, label in items]


def refund(order: Order) -> None:
    pay_at_once(order=order)
    refund_order(order=order)


def ship(order: Order) -> None:
    pay_at_once(order=order)
    save_address(order=order, lines=ADDRESS)
    assert mark_shipped(sale=order.sale, printed={order.pk: 1}) == 1


STATES = {
    "unpaid": (lambda order: None, "Reserved for you.", ("Paid not yet", False)),
    "paying": (
        lambda order: start_payment(order=order),
        "Finish your payment",
        ("Paid not yet", False),
    ),
    "paid": (lambda order: pay_at_once(order=order), "Thank you!", ("Paid", True)),
    "cancelled": (
        lambda order: cancel_order(order=order),
        "You cancelled this order",
        ("✕ Cancelled", True),
    ),
    "overdue": (
        lambda order: Order.objects.update(pay_by=timezone.now()),
        "Your reservation has expired",
        ("✕ Expired", True),
    ),
    "expired": (
        lambda order: purchases.expire_the_pending_order(),
        "Your reservation has expired",
        ("✕ Expired", True),
    ),
    "shipped": (ship, "Your order has been shipped", ("Shipped", True)),
    "refunded": (refund, "This order was cancelled", ("↩ Refunded", True)),
}


@pytest.mark.parametrize("state", STATES)
def test_headline_and_steps_show_the_state(shop, order, state):
    change, expected, last = STATES[state]
    change(order)
    page = shop.get(order.get_absolute_url()).text
    assert headline(page).startswith(expected)
    paid = [("Paid", False)] if state in ("refunded", "shipped") else []
    assert steps(page) == [("Reserved", not last[1]), *paid, last]
    is_payable = state in ("unpaid", "paying")
    assert ("/payment/" in page, "/cancel/" in page) == (is_payable, is_payable)
    assert ("/refund/" in page) == (state == "paid")
    assert ("✓ Shipped" in text(shop.get("/orders/").text)) == (state == "shipped")
    is_closed = state in ("cancelled", "expired", "refunded")
    assert ("Buy again" in page) == is_closed


def test_order_page_without_a_payment_provider_says_so(shop, order, settings):
    settings.PAYMENT_PROVIDER = "none"
    page = shop.get(order.get_absolute_url()).text
    assert "isn't set up in this shop. Ask the shop how to pay" in text(page)
    assert ("/payment/" in page, "/cancel/" in page) == (False, True)
    assert not BADGE.search(page)
    assert "Pay now" not in shop.get(order.sale.get_absolute_url()).text


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("fulfilment", Sale.Fulfilment.values)
@pytest.mark.parametrize("backend", ["redis", "none"])
def test_order_names_the_lock_of_its_purchase(li, shop, fulfilment, backend):
    """The same in each response and on the page, with the token that the ledger has."""
    put_in_force(backend)
    client = signed_in(li, headers={"Accept": "application/json"})
    sale = a_sale(fulfilment=fulfilment)
    bought = buy(client, sale)
    assert consume() == sale.is_queued
    order = Order.objects.get()
    if not sale.is_queued:
        assert bought.json() == buy(client, sale).json() == order.receipt
    told = client.get(order.get_absolute_url()).json()["lock"]
    assert told["backend"] == backend
    assert (told["waited_ms"] is None) == sale.is_queued
    assert told["held_ms"] > 0
    written = StockMovement.objects.get(order_number=order.number)
    assert told["token"] == (written.fence_token or None)
    assert (told["token"] is None) == (backend != "redis")
    html = shop.get(order.get_absolute_url()).text
    page = text(html)
    shown = "No lock guarded" if backend == "none" else "waited" if not sale.is_queued else "batch"
    assert shown in page
    line = f"<p>Your fencing token is <code>{told['token']}</code>"
    assert (line in re.sub("</span><span>|</?span>", "", html)) == (backend == "redis")
    assert ("</span><span>" in html) == (backend == "redis"), "the digits are not in groups"
    assert "Back to the sale" in page


def test_order_page_of_a_shop_without_the_lab_names_no_lock(shop, order):
    """A merchant's customers have no use for it."""
    page, json = order.get_absolute_url(), {"Accept": "application/json"}
    assert "for the lock" in shop.get(page).text
    *without_lab, lab = urlpatterns
    assert lab.urlconf_name.__name__ == "loadtest.web.urls"
    with override_settings(ROOT_URLCONF=tuple(without_lab)):
        assert "for the lock" not in shop.get(page).text
    Order.objects.update(lock=None)  # as those of the seed
    assert "for the lock" not in shop.get(page).text
    assert shop.get(page, headers=json).json()["lock"] is None


SAID = {
    None: "You haven't been charged.",
    Payment.Status.DECLINED: "You haven't been charged.",
    Payment.Status.STARTED: "If you're charged later, we'll refund you.",
    Payment.Status.TIMED_OUT: "If you're charged later, we'll refund you.",
    Payment.Status.REFUNDING: "We are refunding ¥9.90. You don't have to do anything.",
    Payment.Status.REFUNDED: "We refunded ¥9.90 at",
}


@pytest.mark.parametrize("payment", SAID)
def test_closed_order_never_promises_what_it_cannot_know(shop, order, payment):
    if payment:
        start_payment(order=order)
        Payment.objects.update(status=payment, refunded_at=timezone.now())
    cancel_order(order=order)
    page = text(shop.get(order.get_absolute_url()).text.replace("&#x27;", "'"))
    assert {one for one in SAID.values() if one in page} == {SAID[payment]}


WHY_REFUNDED = {
    Order.Status.REFUNDED: "Refund",
    Order.Status.PAID: "You paid this order twice.",
    Order.Status.EXPIRED: "Your payment arrived too late.",
}


@pytest.mark.parametrize("status", WHY_REFUNDED)
def test_order_says_why_money_goes_back(shop, order, status):
    """The page is loaded again every three seconds, unless that would clear the address."""
    start_payment(order=order)
    Payment.objects.update(status=Payment.Status.REFUNDING)
    Order.objects.update(status=status)
    page = shop.get(order.get_absolute_url()).text
    assert f"↩ {WHY_REFUNDED[status]} We are refunding" in text(page)
    assert "We refunded" not in page, "the money is not there yet"
    assert ('name="street"' in page) == (status == Order.Status.PAID)
    assert ("hx-get" in page) != (status == Order.Status.PAID)


def test_order_numbers_are_random():
    numbers = [Order().number for _ in range(50)]
    assert all(re.fullmatch("[0-9A-F]{16}", number) for number in numbers)
    assert len({number[:4] for number in numbers}) > 25


# --- the header's badge -------------------------------------------------------------------------


def test_header_shows_the_minutes_of_the_earliest_unpaid_order(shop, li, order):
    later = purchases.buy(a_sale(), customer=li).order
    now = timezone.now()
    for one, minutes in ((order, 3), (later, 9)):
        Order.objects.filter(pk=one.pk).update(pay_by=now + timedelta(minutes=minutes))
    assert BADGE.findall(shop.get("/").text) == ["3", "3"], "in the navigation, or on a phone"
    assert BADGE.findall(shop.get(later.get_absolute_url()).text) == [], "it has its own deadline"
    mine = shop.get("/orders/").text
    assert mine.index(later.get_absolute_url()) < mine.index(order.get_absolute_url())
    Order.objects.filter(pk=order.pk).update(status=Order.Status.PAID)
    assert BADGE.findall(shop.get("/products/").text) == ["9", "9"]
    Order.objects.update(pay_by=now)
    assert BADGE.findall(shop.get("/").text) == []
    Order.objects.update(pay_by=now + timedelta(minutes=9))
    assert BADGE.findall(signed_in().get("/").text) == [], "the order of another customer"
    assert BADGE.findall(Client().get("/").text) == []


def change_price(price: str) -> None:
    Sale.objects.update(price=Decimal(price))
    admission.clear()


def test_pages_show_the_price_of_the_order_before_it_is_paid() -> None:
    sale, client = a_sale(), signed_in()
    assert "9.90" in client.get(f"/sales/{sale.slug}/").text
    change_price("12.30")
    order_page = client.get(buy(client, sale)["Location"])
    assert "12.30" in order_page.text
    change_price("99.90")
    order = Order.objects.get()
    paid = client.post(f"{order.get_absolute_url()}pay/", {"idempotency_key": "p"})
    assert "12.30" in client.get(paid["Location"]).text
    assert (order.unit_price, Payment.objects.get().amount) == (Decimal("12.30"), Decimal("12.30"))


def test_largest_order_can_be_paid() -> None:
    sale, client = a_sale(stock=100, limit=100), signed_in()
    change_price("99999999.99")
    page = buy(client, sale, quantity=100)["Location"]
    assert client.post(f"{page}pay/", {"idempotency_key": "p"}).status_code == 303
    assert Payment.objects.get().amount == Decimal("9999999999.00")
    assert "Paid" in client.get(page).text
