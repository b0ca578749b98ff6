"""Every page fits its screen, is accessible, is light and obeys shop/platform/headers.py."""

from __future__ import annotations

import subprocess
import sys

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.conf import settings
from playwright.sync_api import expect

from loadtest.bench.purchase.web import WebServer
from shop.models import Order, Sale, User
from shop.payments.service import start_payment
from shop.purchase.place_order import place_order
from shop.sales.purchase_request import PurchaseRequest
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
        && !words.currentNode.parentElement.closest("[translate=no]")
        && words.currentNode.parentElement.checkVisibility()) found.push(words.currentNode.data);
  return found;
})()"""


STAFF_PAGES = {
    "ops": "/ops/",
    "lab": "/lab/",
    "learn": "/learn/",
    "learn-step": "/learn/fence/",
    "admin": "/admin/",
    "admin-sale": "/admin/shop/sale/add/",
    "admin-policy": "/admin/locking/lockpolicy/1/change/",
}
GROUPS = {"li": PAGES, "amy": STAFF_PAGES}
FOCUS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const over = (color, below) => {
    canvas.fillStyle = `rgb(${below})`;
    canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const behind = (one) => one
    ? over(getComputedStyle(one).backgroundColor, behind(one.parentElement)) : [255, 255, 255];
  const light = (color) => color.map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const one = document.activeElement, style = getComputedStyle(one);
  const back = behind(one.parentElement);
  if (one === document.body) return null;
  const [low, high] = [light(back), light(over(style.outlineColor, back))].sort((a, b) => a - b);
  const isDrawn = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return {html: one.outerHTML.slice(0, 120), contrast: isDrawn ? (high + 0.05) / (low + 0.05) : 0};
}"""
"""The element with the focus, and the contrast of its ring with what lies behind it."""


@pytest.fixture
def pages(people):
    """Paths by name for the user "li" or "amy"; the lock policy is unsafe."""
    sale = Sale.objects.select_related("stock", "product").get(slug="speaker")
    li = User.objects.get(username="li")
    order = place_order(PurchaseRequest(customer_id=li.pk, sale=sale, quantity=1, key="k")).order
    names = {"order": order.number, "payment": start_payment(order=order).reference}
    put_in_force("none", "naive")
    yield lambda user: {name: path.format(**names) for name, path in GROUPS[user].items()}
    assert Order.objects.filter(customer=li).count() == 1


@pytest.mark.parametrize("user", ["li", "amy"])
@pytest.mark.parametrize(
    ("width", "scheme", "locale"),
    [
        (360, "light", "zh-CN"),
        (360, "dark", "en-GB"),
        (1280, "light", "en-GB"),
        (1280, "dark", "zh-CN"),
    ],
)
def test_every_page_fits_and_is_accessible(people, pages, user, width, scheme, locale):
    page = people(
        user, viewport={"width": width, "height": 780}, color_scheme=scheme, locale=locale
    )
    axe, found = Axe(), {}
    for name, path in pages(user).items():
        page.goto(path)
        page.screenshot(path=SHOTS / f"{name}-{width}-{scheme}-{locale}.png", full_page=True)
        complaints = len(people.complaints)
        violations = axe.run(page).response["violations"]
        del people.complaints[complaints:]  # those of axe's own styles
        problems = [
            (one["id"], one["nodes"][0]["html"])
            for one in violations
            if one["impact"] in ("serious", "critical")
        ]
        if page.evaluate(TOO_WIDE) > 0:
            problems.append("wider than the screen")
        if user == "li":
            problems += page.evaluate(TOO_SMALL)
            problems += page.evaluate(UNTRANSLATED) if locale == "zh-CN" else []
        elif name.startswith("lab"):
            expect(page.locator(".banner")).to_be_visible()
        if problems:
            found[path] = problems
    assert found == {}


@pytest.mark.parametrize("user", ["li", "amy"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_focus_is_visible_everywhere(people, pages, user, scheme):
    """Each element that Tab reaches has a ring with a contrast of at least 3:1."""
    page = people(user, color_scheme=scheme)
    weak = {}
    for name, path in pages(user).items():
        page.goto(path)
        rings = []
        for _ in range(60):
            page.keyboard.press("Tab")
            ring = page.evaluate(FOCUS)
            if ring is None:
                break
            rings.append(ring)
        assert len(rings) >= 3, name
        if missing := [ring for ring in rings if ring["contrast"] < 3]:
            weak[name] = missing
    assert weak == {}


def test_axe_finds_a_planted_violation(people):
    """The control for the test above."""
    page = people()
    page.goto("/")
    page.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<img src=x>')")
    assert "image-alt" in [one["id"] for one in Axe().run(page).response["violations"]]


def test_first_load_of_a_sale_page_is_small(people, tmp_path, database_url, monkeypatch):
    """Bytes on the wire from gunicorn, with the files as `collectstatic` compresses them."""
    for name, value in {"DATABASE_URL": database_url, "SHOP_VAR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    root = str(settings.BASE_DIR)
    monkeypatch.setenv("PYTHONPATH", root)
    command = [sys.executable, "manage.py", "collectstatic", "--noinput", "--verbosity=0"]
    subprocess.run(command, cwd=root, check=True)
    page = people("li")
    cookies = page.context.cookies()
    requested, received = {}, {}
    wire = page.context.new_cdp_session(page)
    wire.on("Network.requestWillBeSent", lambda e: requested.update({e["requestId"]: e["request"]}))
    wire.on(
        "Network.loadingFinished",
        lambda e: received.update({e["requestId"]: e["encodedDataLength"]}),
    )
    wire.send("Network.enable")
    with WebServer(1) as web:
        page.context.add_cookies(
            [{"name": one["name"], "value": one["value"], "url": web.url} for one in cookies]
        )
        page.goto(f"{web.url.rstrip('/')}/sales/teapot/", wait_until="networkidle")
        expect(page.get_by_role("button", name="Buy now")).to_be_enabled()
        expect(page.locator(".menu summary")).to_have_text("li")
        page.close()  # it would miss the server
    first = {
        one["url"]: received[key]
        for key, one in requested.items()
        if "/stock/" not in one["url"] and not one["url"].startswith("data:")
    }
    assert len(first) <= 8, first
    assert 20_000 < sum(first.values()) <= 60_000, first
    assert {url.split("/")[2] for url in first} == {web.url.split("/")[2]}, "nothing foreign"


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
