"""A person buys, in a real Chromium; screenshots go to var/screenshots."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.conf import settings
from django.core.cache import cache
from django.core.management import call_command
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect, sync_playwright

from locking import policy
from shop.audit import audit_all
from shop.management.commands.seed import PASSWORD
from shop.models import Order, Sale
from tests.shop.making import put_in_force

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
SHOTS = Path(settings.BASE_DIR) / "var" / "screenshots"
CI = os.environ.get("CI") == "true"

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        not CI and not Path(CHROMIUM).exists(), reason="install it: apt-get install chromium"
    ),
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    # Playwright's own event loop is no reason to keep this thread from the database.
    with (
        pytest.MonkeyPatch.context() as patch,
        sync_playwright() as playwright,
    ):
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def people(chromium: Browser, live_server) -> Iterator[Callable[..., Page]]:
    """Opens windows on the seeded shop; in the end, no script may have complained."""
    put_in_force("redis")
    cache.clear()
    call_command("seed", stdout=StringIO())
    SHOTS.mkdir(parents=True, exist_ok=True)
    contexts, complaints = [], []

    def window(**options: object) -> Page:
        context = chromium.new_context(base_url=live_server.url, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
        return page

    yield window
    for context in contexts:
        context.close()
    policy.forget()
    # A refusal is an answer; the browser logs it as an error all the same.
    assert [said for said in complaints if "Failed to load resource" not in said] == []


def sign_in(page: Page, name: str = "li") -> None:
    page.locator("[name=username]").fill(name)
    page.locator("[name=password]").fill(PASSWORD)
    page.locator("main form button").click()


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_sign_in_buy_pay(people, script):
    page = people(viewport={"width": 360, "height": 780}, java_script_enabled=script)
    page.goto("/")
    page.get_by_role("link", name="Phone X").click()
    page.get_by_role("button", name="Sign in to buy").click()
    sign_in(page)
    expect(page).to_have_url(re.compile("/sales/phone-x/$"))
    page.get_by_role("button", name="Buy now").click()
    expect(page).to_have_url(re.compile("/orders/[0-9A-F]{16}/$"))
    expect(page.get_by_role("status")).to_contain_text("Waiting for payment")
    page.screenshot(path=SHOTS / f"order-{'script' if script else 'plain'}.png", full_page=True)
    page.get_by_role("button", name="Pay ¥999").click()
    page.get_by_role("button", name="Approve", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Paid")
    page.get_by_role("link", name="My orders").first.click()
    expect(page.locator("main li")).to_have_count(1)
    page.goto("/sales/phone-x/")
    expect(page.get_by_role("button", name="See your order")).to_be_visible()
    order = Order.objects.get(customer__username="li")
    assert (order.sale.slug, order.status) == ("phone-x", "paid")
    assert all(audit.ok for audit in audit_all())


def test_cancel_and_the_piece_is_back(people):
    page = people()
    page.goto("/accounts/sign-in/?next=/sales/speaker/")
    sign_in(page)
    expect(page.locator("#stock")).to_contain_text("3 of 25")
    page.get_by_role("button", name="Buy now").click()
    page.get_by_role("button", name="Cancel the order").click()
    expect(page.get_by_role("status")).to_contain_text("Cancelled")
    page.goto("/sales/speaker/")
    expect(page.locator("#stock")).to_contain_text("3 of 25")
    expect(page.get_by_role("button", name="Buy now")).to_be_enabled()


def test_the_button_opens_by_the_servers_clock(people):
    """With a computer whose clock is an hour fast, and without loading the page again."""
    opens_at = timezone.now() + timedelta(seconds=6)
    Sale.objects.filter(slug="camera").update(opens_at=opens_at)
    page = people()
    page.add_init_script("const now = Date.now; Date.now = () => now() + 3600e3")
    page.goto("/accounts/sign-in/?next=/sales/camera/")
    sign_in(page)
    expect(page.get_by_role("timer")).to_have_text(re.compile(r"^00:00:0[1-6]$"))
    expect(page.get_by_role("button", name="Opens at")).to_be_disabled()
    loads = []
    page.on("request", lambda request: request.is_navigation_request() and loads.append(request))
    opened = page.get_by_role("button", name="Buy now")
    expect(opened).to_be_enabled(timeout=15_000)
    assert timezone.now() >= opens_at
    assert loads == []
    opened.dblclick()
    expect(page.get_by_role("status")).to_contain_text("Waiting for payment")
    assert Order.objects.filter(sale__slug="camera").count() == 1


def test_the_page_notices_that_the_sale_is_sold_out(people):
    page = people()
    page.goto("/accounts/sign-in/?next=/sales/kettle/")
    sign_in(page)
    expect(page.get_by_role("button", name="Buy now")).to_be_enabled()
    Sale.objects.get(slug="kettle").stock.movements.update(delta=0)
    Sale.objects.get(slug="kettle").stock.__class__.objects.update(quantity=0)
    expect(page.get_by_role("button", name="Sold out")).to_be_disabled(timeout=15_000)


def test_busy_keeps_the_form(people):
    put_in_force("redis")
    page = people()
    page.goto("/accounts/sign-in/?next=/sales/teapot/")
    sign_in(page)
    key = page.locator("[name=idempotency_key]").input_value()
    page.get_by_label("Quantity").select_option("2")
    policy.begin_switch(backend="database")  # and nobody may buy while it drains
    page.get_by_role("button", name="Buy now").click()
    again = page.get_by_role("button", name="Try again")
    expect(again).to_be_enabled(timeout=15_000)
    expect(page.get_by_role("alert")).to_be_visible()
    assert page.locator("[name=idempotency_key]").input_value() == key
    expect(page.get_by_label("Quantity")).to_have_value("2")
    policy.cancel_switch()
    again.click()
    expect(page.get_by_role("status")).to_contain_text("Waiting for payment", timeout=15_000)
    assert Order.objects.get(customer__username="li").quantity == 2


def test_the_language_menu(people):
    page = people()
    page.goto("/sales/phone-x/")
    page.get_by_label("Language").select_option("zh-hans")
    expect(page.get_by_role("heading", level=1)).to_have_text("手机 X")
    expect(page).to_have_url(re.compile("/sales/phone-x/$"))


PAGES = {
    "home": "/",
    "products": "/products/",
    "product": "/products/guitar/",
    "live": "/sales/teapot/",
    "before": "/sales/bicycle/",
    "sold-out": "/sales/lamp/",
    "ended": "/sales/keyboard/",
    "orders": "/orders/",
    "sign-up": "/accounts/sign-up/",
}
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
TOO_SMALL = """[...document.querySelectorAll("a, button, select, input:not([type=hidden])")]
  .filter(one => !one.closest(".skip") && one.offsetWidth && one.offsetHeight < 44)
  .map(one => one.outerHTML)"""


@pytest.mark.parametrize(
    ("width", "scheme", "locale"),
    [
        (360, "light", "zh-CN"),
        (360, "dark", "en-GB"),
        (1280, "light", "en-GB"),
        (1280, "dark", "zh-CN"),
    ],
)
def test_every_page_fits(people, width, scheme, locale):
    put_in_force("none", "naive")  # with the banner
    page = people(viewport={"width": width, "height": 780}, color_scheme=scheme, locale=locale)
    page.goto("/accounts/sign-in/?next=/sales/teapot/")
    sign_in(page)
    expect(page.locator("#stock")).to_be_visible()
    for name, path in PAGES.items():
        page.goto(path)
        page.screenshot(path=SHOTS / f"{name}-{width}-{scheme}-{locale}.png", full_page=True)
        assert page.evaluate(TOO_WIDE) <= 0, path
        assert page.evaluate(TOO_SMALL) == [], path
        expect(page.locator("aside[role=alert]")).to_be_visible()


def test_the_keyboard_reaches_the_contents_first(people):
    page = people()
    page.goto("/")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#content$"))
