"""People find a sale and buy, with and without script."""

import re
import threading

import pytest
from django.utils import timezone
from playwright.sync_api import Route, expect

from devservers.faults.waiting import until
from inventory.models import Stock, StockMovement
from locking import policy
from shop.administration.audit import audit_all
from shop.models import Order, Sale, digest
from shop.reservations.consumer import Consumer
from tests.browser.conftest import PASSWORD, PHONE, TOO_WIDE, complaints, opens_in, sign_in


def empty(slug: str) -> None:
    """Sell all units that are left."""
    Stock.objects.filter(sale__slug=slug).update(quantity=0)


def test_sign_in_buy_pay_without_script(people):
    """test_whole_purchase_by_keyboard is the same with script."""
    page = people(**PHONE, java_script_enabled=False)
    page.goto("/")
    page.get_by_role("link", name="Phone X").click()
    page.get_by_role("button", name="Sign in to buy").click()
    sign_in(page)
    expect(page).to_have_url(re.compile("/sales/phone-x/$"))
    page.get_by_role("button", name="Buy now").click()
    expect(page).to_have_url(re.compile("/orders/[0-9A-F]{16}/$"))
    expect(page.get_by_role("status")).to_contain_text("Waiting for payment")
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


FIRST_END = """() => {
  const clock = document.querySelector("[role=timer]");
  const seen = () => { if (clock.dataset.then === "reload") window.first ??= clock.textContent; };
  new MutationObserver(seen).observe(clock, {childList: true, attributes: true});
}"""
"""Keep what the clock says first once it counts to the end of the sale."""


def test_button_opens_by_the_server_clock(people):
    """With a computer whose clock is an hour fast, and without loading the page again."""
    page = people("li")
    page.add_init_script("const now = Date.now; Date.now = () => now() + 3600e3")
    opens_in("camera", 3600)
    page.goto("/sales/camera/")
    expect(page.get_by_role("timer")).to_have_attribute("aria-live", "off")
    opens_at = opens_in("camera", 15)
    page.goto("/sales/camera/")
    expect(page.get_by_role("timer")).to_have_text(re.compile(r"^00:00:(0\d|1[0-5])$"))
    expect(page.get_by_role("timer")).to_have_attribute("aria-live", "polite")
    expect(page.get_by_role("button", name="Opens ")).to_be_disabled()
    page.evaluate(FIRST_END)
    loads = []
    page.on("request", lambda request: request.is_navigation_request() and loads.append(request))
    opened = page.get_by_role("button", name="Buy now")
    expect(opened).to_be_enabled()
    assert timezone.now() >= opens_at
    expect(page.get_by_text("Ends in")).to_be_visible()
    assert re.match("29 d|30 d", page.evaluate("first")), "not 00:00:00 until the next tick"
    expect(page.get_by_text("● Open")).to_be_visible()
    assert loads == []
    opened.dblclick()
    expect(page.get_by_role("status")).to_contain_text("Waiting for payment")
    assert Order.objects.filter(sale__slug="camera").count() == 1


def test_purchase_of_a_sold_out_sale_is_refused(people):
    page = people("li", **PHONE)
    page.route("**/sales/kettle/stock/*", lambda route: route.fulfill(status=204))  # would say so
    page.goto("/sales/kettle/")
    empty("kettle")
    with page.expect_response("**/buy/") as refusal:
        page.get_by_role("button", name="Buy now").click()
    assert refusal.value.status == 409
    expect(page.get_by_role("alert")).to_contain_text("Sold out")
    expect(page.get_by_role("button", name="Sold out")).to_be_disabled()
    assert not Order.objects.filter(customer__username="li").exists()


def test_buyer_who_wants_too_many_chooses_fewer(people):
    page = people("li")
    page.goto("/sales/teapot/")
    page.get_by_label("Quantity").select_option("2")
    Stock.objects.filter(sale__slug="teapot").update(quantity=1)
    page.get_by_role("button", name="Buy now").click()
    expect(page.get_by_role("alert")).to_contain_text("Fewer left than you want")
    page.get_by_label("Quantity").select_option("1")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("status")).to_contain_text("Waiting for payment")
    assert Order.objects.get(customer__username="li").quantity == 1


def test_503_keeps_the_form(people, settings):
    page = people("li")
    page.goto("/sales/teapot/")
    key = page.locator("[name=idempotency_key]").input_value()
    page.get_by_label("Quantity").select_option("2")
    policy.switch(backend="database", wait=False)  # no purchase succeeds during the drain
    settings.LOCK_TIMEOUT = 0.5
    page.get_by_role("button", name="Buy now").click()
    again = page.get_by_role("button", name="Try again")
    expect(again).to_be_enabled()
    expect(page.get_by_role("alert")).to_be_visible()
    assert page.locator("[name=idempotency_key]").input_value() == key
    expect(page.get_by_label("Quantity")).to_have_value("2")
    policy.cancel_switch()
    settings.LOCK_TIMEOUT = 60.0
    again.click()
    expect(page.get_by_role("status")).to_contain_text("Waiting for payment")
    assert Order.objects.get(customer__username="li").quantity == 2


def test_queued_purchase_leads_to_its_order(people):
    """The page waits, and leads to the order as soon as it is written."""
    page = people("li", **PHONE)
    page.goto("/sales/guitar/")
    page.get_by_role("button", name="Buy now").click()
    expect(page).to_have_url(re.compile("/reservations/"))
    expect(page.get_by_role("status")).to_contain_text("You're in!")
    page.wait_for_load_state()
    assert page.evaluate(TOO_WIDE) <= 0
    assert Consumer(threading.Event()).round() == 1
    expect(page).to_have_url(re.compile("/orders/"))
    expect(page.get_by_role("status")).to_contain_text("Waiting for payment")


def test_times_are_shown_in_the_reader_zone(people):
    page = people(timezone_id="America/New_York", locale="en-US")
    sale = Sale.objects.get(slug="bicycle")
    page.goto("/")
    shown = page.get_by_role("listitem").filter(has_text="City Bicycle").locator("time:visible")
    expect(shown).to_have_text(re.compile(r"^Opens in (2 h 5\d|3 h 0) min$"))
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
    complaints[:] = [text for text in complaints if "htmx" not in text]


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


@pytest.mark.parametrize("refusal", ["sold_out", "not_open"])
def test_refusal_is_not_final_while_an_earlier_attempt_may_succeed(people, refusal):
    page = people("li")
    attempts = []

    def serve(route: Route) -> None:
        attempts.append(re.search("attempt=([0-9]+)", route.request.post_data)[1])
        if len(attempts) == 1:
            route.abort("connectionreset")
        elif len(attempts) == 2:
            route.fulfill(status=409, json={"error": refusal, "title": "-", "detail": "-"})
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
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#content$"))
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


def test_cards_follow_stock_and_phase_without_a_reload(people):
    opens_in("camera", 25)
    page = people()
    page.goto("/")
    loads, polls = [], []
    page.on("request", lambda request: request.is_navigation_request() and loads.append(request))
    page.on("response", lambda one: "/live/" in one.url and polls.append(len(one.body())))
    camera = page.get_by_role("listitem").filter(has_text="Pocket Film Camera")
    expect(camera).to_contain_text("○ Upcoming")
    expect(camera.locator("time:visible")).to_have_text(re.compile(r"^Opens in \d+ s$"))
    camera.get_by_role("link").focus()
    Stock.objects.filter(sale__slug="phone-x").update(quantity=5)
    phone = page.get_by_role("listitem").filter(has_text="Phone X")
    expect(phone).to_contain_text("5 left")
    expect(camera).to_contain_text("● Open", timeout=40_000)
    expect(camera.locator("time:visible")).to_have_text(re.compile("^Ends in "))
    expect(camera.get_by_role("link")).to_be_focused()
    assert loads == []
    assert min(polls) < 6000, "states only"


def test_page_polls_each_second_and_pauses_in_a_hidden_tab(people):
    page, poll = people(), "/sales/teapot/stock/"
    page.clock.install(time=0)
    page.goto("/sales/teapot/")
    polls = []
    page.on("request", lambda request: poll in request.url and polls.append(request.url))
    page.clock.pause_at(100)
    for _ in range(3):  # the first one has replaced the part that polls
        with page.expect_response(f"**{poll}**"):
            page.clock.run_for(1_001)
        part = page.locator(".htmx-request")
        until(lambda: page.clock.run_for(50) or not part.count(), "the swap")  # noqa: B023
    seen = len(polls)
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    page.clock.run_for(60_000)
    assert len(polls) == seen
    page.evaluate("Object.defineProperty(document, 'hidden', {value: false})")
    with page.expect_response(f"**{poll}**"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    assert len(polls) == seen + 1


def test_double_click_of_staff_adds_stock_once(people):
    """Each of the two requests added the units, and the page told of one."""
    page, sale = people("amy"), Sale.objects.get(slug="phone-x")
    stocked = StockMovement.objects.filter(stock=sale.stock_id, reason="stocked")
    page.goto(f"/admin/shop/sale/{sale.pk}/change/")
    sent: list[Route] = []
    # No reply before the second click.
    page.route("**/admin/shop/sale/", lambda route: sent.append(route))
    with page.expect_request("**/admin/shop/sale/"):
        page.get_by_role("button", name="Add stock").dblclick(delay=30, no_wait_after=True)
    (one,) = sent
    one.continue_()
    expect(page.get_by_text("10 units added.")).to_be_visible()
    assert stocked.count() == 2
