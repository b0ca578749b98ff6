"""Every page fits its screen, is accessible, is light and obeys shop/platform/headers.py."""

from gzip import compress
from pathlib import Path

import pytest
from playwright.sync_api import Response, expect

from shop.models import Order
from shop.payments.service import start_payment
from tests.browser.conftest import LOOKS, TOO_SMALL, bought, every_look, problems
from tests.shop.making import put_in_force
from tests.shop.staff import held

PAGES = {
    "home": "/",
    "products": "/products/",
    "no-product": "/products/?q=nothing",
    "product": "/products/guitar/",
    "live": "/sales/teapot/",
    "before": "/sales/bicycle/",
    "sold-out": "/sales/lamp/",
    "ended": "/sales/keyboard/",
    "bought": "/sales/speaker/",
    "orders": "/orders/",
    "order": "/orders/{order}/",
    "gateway": "/payments/{payment}/",
    "sign-up": "/accounts/sign-up/",
    "sign-in": "/accounts/sign-in/",
    "profile": "/accounts/profile/",
    "password": "/accounts/password/",
    "reset": "/accounts/reset/",
    "mailbox": "/lab/mail/",
    "not-found": "/nowhere",
    "wrong-method": "/sales/teapot/buy/",
}
STAFF_PAGES = {
    "lab": "/lab/",
    "learn": "/learn/",
    "learn-grid": "/learn/grid/",
    "learn-step": "/learn/fence/",
    "admin": "/admin/",
    "admin-sale": "/admin/shop/sale/add/",
    "admin-sale-page": "/admin/shop/sale/{sale}/change/",
    "packing": "/admin/shop/sale/{sale}/packing/",
    "admin-policy": "/admin/locking/lockpolicy/1/change/",
}
GROUPS = {"li": PAGES, "amy": STAFF_PAGES}
FOCUS = Path(__file__).with_name("focus.js").read_text()
FIELDS = "select, textarea, input:not([type=hidden], [type=submit], [type=range], [type=file])"


@pytest.fixture
def pages(people):
    """Paths by name for the user "li" or "amy"; the lock policy is unsafe."""
    order = bought("speaker")
    names = {"order": order.number, "payment": start_payment(order=order).reference}
    names["sale"] = str(order.sale_id)
    put_in_force("none", "naive")
    yield lambda user: {name: path.format(**names) for name, path in GROUPS[user].items()}
    assert Order.objects.filter(customer=order.customer).count() == 1


def weak_rings(page, name):
    """Return the elements that Tab reaches without a ring, or one with a contrast below 3:1."""
    rings = []
    while len(rings) < 60:
        page.keyboard.press("Tab")
        if (ring := page.evaluate(FOCUS)) is None:
            break
        rings.append(ring)
    assert len(rings) >= 3, name
    return [(name, ring) for ring in rings if ring["contrast"] < 3]


@pytest.mark.parametrize("user", ["li", "amy"])
@every_look
def test_every_page_fits_and_is_accessible(people, pages, user, look):
    page, found = people(user, **look), []
    for name, path in pages(user).items():
        page.goto(path)
        found += [(name, field) for field in page.evaluate(FOCUS, FIELDS)]
        found += weak_rings(page, name)  # before axe, which moves the place where Tab begins
        found += problems(page, name, of_shop=user == "li")
        for top in page.locator(".top").all():  # the admin has its own
            found += [(name, "header of two rows")] if top.bounding_box()["height"] > 60 else []
        if name == "lab":
            expect(page.locator(".banner")).to_be_visible()
    assert found == []


def test_axe_finds_a_planted_violation(people):
    """The control for the test above."""
    page = people()
    page.goto("/")
    page.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<img src=x>')")
    assert "image-alt" in str(problems(page, "planted"))


def test_first_load_of_a_sale_page_is_small(people, live_server):
    """All that is received without polls, compressed with gzip."""
    page, received = people("li"), list[Response]()
    page.on("response", lambda one: received.append(one))
    page.goto("/sales/teapot/", wait_until="networkidle")
    expect(page.get_by_role("button", name="Buy now")).to_be_enabled()
    loaded = [one for one in received if "/stock/" not in one.url]
    first = {one.url: len(compress(one.body())) for one in loaded}
    assert len(first) <= 8, first
    assert 20_000 < sum(first.values()) <= 60_000, first
    assert [url for url in first if not url.startswith((live_server.url, "data:"))] == []


def test_steps_of_the_admin_are_accessible(people):
    page, found = people("amy", **LOOKS[0]), []

    def check(name: str) -> None:
        found.extend(problems(page, f"admin-{name}", of_shop=False))

    page.goto("/admin/shop/sale/")
    check("sales")
    page.goto("/admin/shop/sale/add/")
    page.locator("[name=_save]").click()
    expect(page.locator(".errornote")).to_be_visible()
    check("mistakes")
    page.goto("/admin/locking/lockpolicy/1/change/")
    page.locator("[name=backend]").select_option("none")
    page.locator("[name=mode]").select_option("naive")
    page.locator("[name=reason]").fill("to show it")
    page.locator("[name=_save]").click()
    field = page.locator("[name=confirm]")
    expect(field).to_be_focused()
    check("confirm")
    field.fill("redis")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    check("not-confirmed")
    page.goto("/admin/locking/lockpolicy/1/change/")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")  # against the system
    found += weak_rings(page, "dark")
    assert found == []


@every_look
def test_break_of_a_held_lock_is_on_the_screen(people, look):
    page, name = people("amy", **look), "report:of-a-very-long-customer-name:" + "7" * 30
    with held(name):
        page.goto("/admin/locking/heldlock/")
        link = page.locator("#result_list a")
        box = link.bounding_box()
        assert box["x"] + box["width"] <= look["viewport"]["width"]
        found = problems(page, "held-locks", of_shop=False)
        link.click()
        expect(page.locator("h1", has_text=name)).to_be_visible()
        assert found + problems(page, "break", of_shop=False) == []


def test_list_of_orders_suits_a_phone(people):
    page = people("amy", viewport={"width": 390, "height": 780})
    bought("speaker")  # waits for payment, the longest status
    page.goto("/admin/shop/order/")
    customer = page.locator(".field-total + .field-customer").first.bounding_box()
    assert customer["x"] + customer["width"] <= 390
    assert page.evaluate(TOO_SMALL.replace("44", "24")) == []


def test_orders_in_each_state_are_accessible(people):
    page, order, found = people("li", **LOOKS[0]), bought("speaker"), []
    for status in Order.Status.values:
        Order.objects.update(status=status)
        page.goto(order.get_absolute_url())
        if status == Order.Status.PENDING:
            page.locator("main summary").click()
        found += problems(page, f"order-{status}")
    assert found == []
