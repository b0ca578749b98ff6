"""People pay, or do not, at the stand-in gateway or by card; each way ends in one state."""

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from shop.administration.audit import audit_all
from shop.models import Order
from shop.orders.service import expire_unpaid_orders
from tests.browser.conftest import PHONE, with_and_without_script
from tests.shop.payments.stripe_server import DECLINED, GOOD, LocalStripe, in_use


def order_of(page: Page, slug: str = "speaker") -> Order:
    """Buy, and stay on the order's page."""
    page.goto(f"/sales/{slug}/")
    page.get_by_role("button", name="Buy now").click()
    expect(page.get_by_role("status")).to_contain_text("Waiting for payment")
    page.wait_for_load_state()
    return Order.objects.get(customer__username="li")


def test_cancellation_needs_a_second_step_and_returns_the_unit(people):
    page = people("li", **PHONE)
    page.goto("/sales/speaker/")
    expect(page.locator("#stock")).to_contain_text("3 of 25")
    order = order_of(page)
    pay = page.get_by_role("button", name="Pay ¥149 now").bounding_box()
    opener = page.locator("main summary")
    confirm = page.get_by_role("button", name="cancel this order")
    expect(confirm).to_be_hidden()
    cancel = opener.bounding_box()
    assert cancel["width"] * cancel["height"] < pay["width"] * pay["height"] / 2
    assert cancel["y"] - (pay["y"] + pay["height"]) > 100, "apart from it"
    opener.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("You can't undo this.")).to_be_visible()
    order.refresh_from_db()
    assert order.status == "pending"
    confirm.click()
    expect(page.get_by_role("status")).to_contain_text("Cancelled")
    page.goto("/sales/speaker/")
    expect(page.locator("#stock")).to_contain_text("3 of 25")
    assert all(audit.ok for audit in audit_all())


def test_header_counts_the_minutes_down(people):
    page = people("li")
    page.clock.install()
    order_of(page)
    badge = page.get_by_role("navigation").get_by_text("min to pay")
    expect(badge).to_be_hidden()
    page.goto("/products/")
    expect(badge).to_contain_text("15 min to pay")
    page.clock.fast_forward("05:30")
    expect(badge).to_contain_text(re.compile(r"\b(9|10) min to pay"))
    page.clock.fast_forward("10:00")
    expect(badge).to_be_hidden()


def test_open_page_shows_that_the_order_expires(people):
    page = people("li", **PHONE)
    order = order_of(page)
    Order.objects.update(pay_by=timezone.now() + timedelta(seconds=3))
    page.reload()
    expect(page.get_by_text("Your reservation has expired")).to_be_visible()
    expect(page.get_by_role("button", name="Pay ¥149 now")).to_have_count(0)
    assert expire_unpaid_orders() >= 1
    expect(page.get_by_role("status")).to_contain_text("Expired")
    order.refresh_from_db()
    assert order.status == "expired"


# --- by card, in the form of Stripe's script -----------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[LocalStripe]:
    with LocalStripe() as server:
        yield server


@pytest.fixture
def stripe(server: LocalStripe, people, live_server) -> Iterator[LocalStripe]:
    server.send_webhooks_to(f"{live_server.url}/payments/webhook/")
    with in_use(server):
        yield server


def fill_in(page: Page, card: str) -> None:
    for name, value in {"number": card, "exp_month": "12", "exp_year": "40", "cvc": "123"}.items():
        page.get_by_placeholder(name).fill(value)


def test_declined_card_then_payment(people, stripe):
    page = people("li", **PHONE)
    order = order_of(page)
    page.get_by_role("button", name="Pay ¥149 now").click()
    fill_in(page, DECLINED)
    page.get_by_role("button", name="Pay ¥149 now").click()
    expect(page.get_by_role("alert")).to_have_text("Your card was declined.")
    fill_in(page, GOOD)
    page.get_by_role("button", name="Pay ¥149 now").click()
    expect(page).to_have_url(re.compile("/orders/"))
    expect(page.get_by_role("status")).to_contain_text("Paid")
    (payment,) = order.payments.all()
    assert payment.status == "approved"


@with_and_without_script
def test_page_without_the_form_says_what_is_needed(people, stripe, script):
    """Without any script, or without the provider's; the order is kept."""
    page = people("li", java_script_enabled=script)
    page.route("**/js.stripe.com/**", lambda route: route.abort())
    order = order_of(page)
    page.get_by_role("button", name="Pay ¥149 now").click()
    wanted = "could not be loaded" if script else "Paying needs JavaScript"
    expect(page.get_by_text(re.compile(f"{wanted}.*your order is kept"))).to_be_visible()
    order.refresh_from_db()
    assert order.is_payable
