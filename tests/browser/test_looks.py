"""Every page fits its screen, is accessible, is light and obeys shop/platform/csp.py."""

from __future__ import annotations

import gzip

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from shop.models import Order, Sale, User
from shop.payments.service import start_payment
from shop.purchase.place_order import place_order
from tests.browser.conftest import SHOTS, TOO_SMALL, TOO_WIDE
from tests.shop.making import put_in_force

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
    "gateway": "/gateway/{payment}/",
    "sign-up": "/accounts/sign-up/",
    "sign-in": "/accounts/sign-in/",
    "profile": "/accounts/profile/",
    "password": "/accounts/password/",
    "not-found": "/nowhere",
    "wrong-method": "/sales/teapot/buy/",
}
UNTRANSLATED = """(() => {
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (words.nextNode())
    if (/[A-Za-z]{2,} [A-Za-z]{2,}/.test(words.currentNode.data)
        && words.currentNode.parentElement.checkVisibility()) found.push(words.currentNode.data);
  return found;
})()"""


@pytest.mark.parametrize(
    ("width", "scheme", "locale"),
    [
        (360, "light", "zh-CN"),
        (360, "dark", "en-GB"),
        (1280, "light", "en-GB"),
        (1280, "dark", "zh-CN"),
    ],
)
def test_every_page_fits_and_is_accessible(people, width, scheme, locale):
    page = people(
        "li", viewport={"width": width, "height": 780}, color_scheme=scheme, locale=locale
    )
    sale = Sale.objects.select_related("stock", "product").get(slug="speaker")
    li = User.objects.get(username="li")
    order = place_order(customer_id=li.pk, sale=sale, quantity=1, key="k").order
    names = {"order": order.number, "payment": start_payment(order=order).reference}
    put_in_force("none", "naive")  # with the banner
    axe = Axe()
    for name, path in PAGES.items():
        page.goto(path.format(**names))
        page.screenshot(path=SHOTS / f"{name}-{width}-{scheme}-{locale}.png", full_page=True)
        assert page.evaluate(TOO_WIDE) <= 0, path
        assert page.evaluate(TOO_SMALL) == [], path
        expect(page.locator("aside[role=alert]")).to_be_visible()
        if locale == "zh-CN":
            assert page.evaluate(UNTRANSLATED) == [], path
        found = axe.run(page).response["violations"]
        grave = [one for one in found if one["impact"] in ("serious", "critical")]
        assert [(one["id"], one["nodes"][0]["html"]) for one in grave] == [], path
    assert Order.objects.filter(customer=li).count() == 1


def test_axe_finds_a_planted_violation(people):
    """The control for the test above."""
    page = people()
    page.goto("/")
    page.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<img src=x>')")
    assert "image-alt" in [one["id"] for one in Axe().run(page).response["violations"]]


def test_first_load_of_a_sale_page_is_small(people):
    page = people("li")
    loaded = []
    page.on("response", lambda response: loaded.append(response))
    page.goto("/sales/teapot/", wait_until="networkidle")
    first = [response for response in loaded if "/stock/" not in response.url]
    sizes = {response.url: len(gzip.compress(response.body(), 6)) for response in first}
    assert len(sizes) <= 8, sizes
    assert sum(sizes.values()) <= 60_000, sizes
    assert {url.split("/")[2] for url in sizes} == {page.url.split("/")[2]}, "nothing foreign"


def test_staff_pages_obey_the_content_security_policy(people):
    """The browser complains of every inline script and style, and `people` of every complaint."""
    page = people("amy")
    for path in ("/admin/", "/admin/shop/sale/", "/admin/shop/sale/add/", "/admin/shop/order/"):
        page.goto(path)
        expect(page.locator("#content")).to_be_visible()
    page.goto("/lab/")
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def test_policy_blocks_inline_script(people):
    """The control for the test above, without which a missing header would not be noticed."""
    page = people()
    page.goto("/")
    ran = page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          window.addEventListener("error", event => event.preventDefault());
          return new Promise(done => {
            const seen = event => done([window.ran ?? null, event.effectiveDirective]);
            document.addEventListener("securitypolicyviolation", seen);
            document.body.append(script);
          });
        }"""
    )
    assert ran == [None, "script-src-elem"]
    (complaint,) = people.complaints
    assert "Content Security Policy" in complaint
    people.complaints.clear()
