"""People buy, with and without script."""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from unittest.mock import patch

import pytest
from django.utils import timezone
from playwright.sync_api import Route, expect

from inventory.models import Stock
from locking import policy
from shop.administration.audit import audit_all
from shop.models import Order, Sale, digest
from shop.reservations.consumer import Consumer
from shop.web import purchase
from tests.browser.conftest import PASSWORD, SHOTS, TOO_WIDE, sign_in

PHONE = {"viewport": {"width": 360, "height": 780}}
with_and_without_script = pytest.mark.parametrize(
    "script", [True, False], ids=["script", "no script"]
)


def empty(slug: str) -> None:
    """Sell all units that are left."""
    Stock.objects.filter(sale__slug=slug).update(quantity=0)


@with_and_without_script
def test_sign_in_buy_pay(people, script):
    page = people(**PHONE, java_script_enabled=script)
    page.goto("/")
    page.get_by_role("link", name="Phone X").click()
    page.get_by_role("button", name="Sign in to buy").click()
    sign_in(page)
    expect(page).to_have_url(re.compile("/sales/phone-x/$"))
    page.get_by_role("button", name="Buy now").click()
    expect(page).to_have_url(re.compile("/orders/[0-9A-F]{16}/$"))
    expect(page.get_by_role("status")).to_contain_text("Waiting for payment")
    page.screenshot(path=SHOTS / f"order-{'script' if script else 'plain'}.png", full_page=True)
    page.get_by_role("button", name="Pay ¥999 now").click()
    page.get_by_role("button", name="Approve", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Paid")
    page.get_by_role("link", name="My orders").first.click()
    expect(page.locator("main li")).to_have_count(1)
    page.goto("/sales/phone-x/")
    expect(page.get_by_role("button", name="See your order")).to_be_visible()
    expect(page.get_by_role("button", name="Buy")).to_have_count(0)
    order = Order.objects.get(customer__username="li")
    assert (order.sale.slug, order.status) == ("phone-x", "paid")
    assert all(audit.ok for audit in audit_all())


def test_signing_up_leads_back_to_the_sale(people):
    page = people(**PHONE, java_script_enabled=False)
    page.goto("/sales/phone-x/")
    expect(page.locator(".count")).to_contain_text(re.compile("Ends at 2.* UTC"))
    assert page.evaluate(TOO_WIDE) == 0
    page.get_by_role("button", name="Sign in to buy").click()
    page.locator("main").get_by_role("link", name="Sign up").click()
    page.locator("[name=username]").fill("chen")
    page.locator("[name=password1]").fill("a-blue-teapot-7")
    page.locator("[name=password2]").fill("another")
    page.locator("main form button").click()
    expect(page.locator(".field-error")).to_be_visible()
    expect(page.locator("[name=username]")).to_have_value("chen")
    for name in ("password1", "password2"):
        page.locator(f"[name={name}]").fill("a-blue-teapot-7")
    page.locator("main form button").click()
    expect(page).to_have_url(re.compile("/sales/phone-x/$"))
    expect(page.get_by_role("button", name="Buy now")).to_be_enabled()


def test_button_opens_by_the_server_clock(people):
    """With a computer whose clock is an hour fast, and without loading the page again."""
    page = people("li")
    page.add_init_script("const now = Date.now; Date.now = () => now() + 3600e3")
    opens_at = timezone.now() + timedelta(seconds=8)
    Sale.objects.get(slug="camera")
    sale = Sale.objects.get(slug="camera")
    sale.opens_at = opens_at
    sale.save()
    page.goto("/sales/camera/")
    expect(page.get_by_role("timer")).to_have_text(re.compile(r"^00:00:0[0-8]$"))
    expect(page.get_by_role("button", name="Opens ")).to_be_disabled()
    loads = []
    page.on("request", lambda request: request.is_navigation_request() and loads.append(request))
    opened = page.get_by_role("button", name="Buy now")
    expect(opened).to_be_enabled()
    assert timezone.now() >= opens_at
    expect(page.get_by_text("Ends in")).to_be_visible()
    expect(page.get_by_text("● Live")).to_be_visible()
    assert loads == []
    opened.dblclick()
    expect(page.get_by_role("status")).to_contain_text("Waiting for payment")
    assert Order.objects.filter(sale__slug="camera").count() == 1


def test_countdown_is_announced_only_near_the_end(people):
    page = people("li")
    for seconds, expected in ((3600, "off"), (9, "polite")):
        sale = Sale.objects.get(slug="camera")
        sale.opens_at = timezone.now() + timedelta(seconds=seconds)
        sale.save()
        page.goto("/sales/camera/")
        expect(page.get_by_role("timer")).to_have_attribute("aria-live", expected)


def test_page_updates_when_the_sale_is_sold_out(people):
    page = people("li")
    page.goto("/sales/kettle/")
    expect(page.get_by_role("button", name="Buy now")).to_be_enabled()
    empty("kettle")
    expect(page.get_by_role("button", name="Sold out")).to_be_disabled()


@with_and_without_script
def test_purchase_of_a_sold_out_sale_is_refused(people, script):
    page = people("li", **PHONE, java_script_enabled=script)
    page.goto("/sales/kettle/")
    empty("kettle")
    with patch.object(purchase, "answer", side_effect=purchase.answer) as refusal:
        page.get_by_role("button", name="Buy now").click()
        expect(page.get_by_role("button", name="Sold out")).to_be_disabled()
    assert refusal.called
    expect(page.get_by_role("alert")).to_contain_text("Sold out")
    expect(page.get_by_role("button", name="Sold out")).to_be_disabled()
    page.screenshot(path=SHOTS / f"refused-{'script' if script else 'plain'}.png", full_page=True)
    assert not Order.objects.filter(customer__username="li").exists()


@with_and_without_script
def test_503_keeps_the_form(people, script):
    page = people("li", java_script_enabled=script)
    page.goto("/sales/teapot/")
    key = page.locator("[name=idempotency_key]").input_value()
    page.get_by_label("Quantity").select_option("2")
    policy.switch(backend="database", wait=False)  # no purchase succeeds during the drain
    page.get_by_role("button", name="Buy now").click()
    again = page.get_by_role("button", name="Try again")
    expect(again).to_be_enabled()
    expect(page.get_by_role("alert")).to_be_visible()
    assert page.locator("[name=idempotency_key]").input_value() == key
    expect(page.get_by_label("Quantity")).to_have_value("2")
    policy.cancel_switch()
    again.click()
    expect(page.get_by_role("status")).to_contain_text("Waiting for payment")
    assert Order.objects.get(customer__username="li").quantity == 2


@with_and_without_script
def test_queued_purchase_leads_to_its_order(people, script):
    """The page waits, and leads to the order as soon as it is written."""
    page = people("li", **PHONE, java_script_enabled=script)
    page.goto("/sales/guitar/")
    page.get_by_role("button", name="Buy now").click()
    expect(page).to_have_url(re.compile("/reservations/"))
    expect(page.get_by_role("status")).to_contain_text("You're in!")
    assert page.evaluate(TOO_WIDE) <= 0
    page.screenshot(path=SHOTS / f"queued-{'script' if script else 'plain'}.png", full_page=True)
    assert Consumer(threading.Event()).round() == 1
    expect(page).to_have_url(re.compile("/orders/"))
    expect(page.get_by_role("status")).to_contain_text("Waiting for payment")


@with_and_without_script
def test_language_changes_with_one_click(people, script):
    page = people(java_script_enabled=script)
    page.goto("/sales/phone-x/")
    page.get_by_role("group", name="Language").get_by_role("button", name="中文").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("手机 X")
    expect(page).to_have_url(re.compile("/sales/phone-x/$"))


def test_times_are_shown_in_the_reader_zone(people):
    page = people(timezone_id="America/New_York", locale="en-US")
    sale = Sale.objects.get(slug="bicycle")
    page.goto("/")
    shown = page.get_by_role("listitem").filter(has_text="City Bicycle").locator("time:visible")
    expect(shown).to_have_text(re.compile(r"^Opens in 2 h 5\d min$"))
    hour = sale.opens_at.astimezone(timezone.zoneinfo.ZoneInfo("America/New_York"))
    expect(shown).to_have_attribute("title", re.compile(f"{hour:%-I:%M}"))
    page.goto(sale.get_absolute_url())
    shown = page.get_by_role("status").locator("time")
    expect(shown).to_contain_text(f"{hour:%H:%M}")
    expect(shown).to_have_attribute("title", re.compile(r"UTC\+8$"))
    expect(page.locator("footer")).to_contain_text(re.compile(r"in your time zone \(UTC-[45]\)"))
    plain = people(java_script_enabled=False)
    plain.goto("/")
    shown = plain.get_by_role("listitem").filter(has_text="City Bicycle").locator("time:visible")
    expect(shown).to_have_text(re.compile(r"\d\d:\d\d UTC\+8$"))
    expect(plain.locator("footer [data-with-script]")).to_be_hidden()


def test_keyboard_reaches_the_content_first(people):
    page = people()
    page.goto("/")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#content$"))


def test_purchase_is_sent_when_the_connection_is_back(people):
    page = people("li")
    page.goto("/sales/phone-x/")
    key = page.locator("[name=idempotency_key]").input_value()
    page.context.set_offline(True)
    page.get_by_role("button", name="Buy now").click()
    expect(page.get_by_text("You're offline.")).to_be_visible()
    expect(page.get_by_role("button", name="Sending")).to_be_visible()
    assert not Order.objects.filter(customer__username="li").exists()
    page.context.set_offline(False)
    expect(page).to_have_url(re.compile("/orders/"))
    order = Order.objects.get(customer__username="li")
    assert order.key == digest(key)
    people.complaints[:] = [text for text in people.complaints if "htmx" not in text]


def test_purchase_whose_response_is_lost_counts_once(people):
    page = people("li")
    lost = []

    def lose(route: Route) -> None:
        if not lost:
            lost.append(route.fetch(max_redirects=0).status)
            route.abort("connectionreset")
        else:
            route.continue_()

    page.route("**/buy/", lose)
    page.goto("/sales/teapot/")
    page.get_by_role("button", name="Buy now").click()
    expect(page).to_have_url(re.compile("/orders/"))
    assert lost == [201]
    order = Order.objects.get(customer__username="li")
    assert order.number in page.url
    assert all(audit.ok for audit in audit_all())


def test_sold_out_is_not_final_while_an_earlier_attempt_may_succeed(people):
    page = people("li")
    attempts = []

    def serve(route: Route) -> None:
        attempts.append(re.search("attempt=([0-9]+)", route.request.post_data)[1])
        if len(attempts) == 1:
            route.abort("connectionreset")
        elif len(attempts) == 2:
            route.fulfill(status=409, json={"error": "sold_out", "title": "-", "detail": "-"})
        else:
            route.continue_()

    page.route("**/buy/", serve)
    page.goto("/sales/teapot/")
    page.get_by_role("button", name="Buy now").click()
    expect(page).to_have_url(re.compile("/orders/"))
    assert attempts == ["1", "2", "3"]


def test_expired_session_leads_to_sign_in(people):
    """Script leaves every answer that needs a page of its own to the browser."""
    page = people("li")
    page.goto("/sales/teapot/")
    page.context.clear_cookies()
    page.get_by_role("button", name="Buy now").click()
    expect(page).to_have_url(re.compile("/accounts/sign-in/"))


def tab_to(page, name: str) -> None:
    """Press Tab until the focus is on the control whose name begins so."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText").strip("✓ ").startswith(name):
            return
    pytest.fail(f"Tab does not reach {name}")


def test_whole_purchase_by_keyboard(people):
    page = people()
    page.goto("/")
    tab_to(page, "Phone X")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/sales/phone-x/$"))
    tab_to(page, "Sign in to buy")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Username")).to_be_focused()
    page.keyboard.type("li")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    for button in ("Buy now", "Pay", "Approve"):
        expect(page.get_by_role("button", name=button).first).to_be_visible()
        tab_to(page, button)
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name=button, exact=True)).to_have_count(0)
    expect(page.get_by_text("Your order is confirmed.")).to_be_visible()
    assert Order.objects.get(customer__username="li").status == "paid"


def test_account_menu_works_by_keyboard(people):
    page = people("li", **PHONE)
    page.goto("/")
    tab_to(page, "li")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Profile")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="Profile")).to_be_hidden()
    expect(page.locator(".menu summary")).to_be_focused()


def test_demo_account_signs_in_with_one_click(people):
    page = people()
    page.goto("/sales/phone-x/")
    page.get_by_role("button", name="Sign in to buy").click()
    page.get_by_role("button", name="Sign in as li").click()
    expect(page.get_by_role("button", name="Buy now")).to_be_enabled()
