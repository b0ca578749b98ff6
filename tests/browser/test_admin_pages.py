"""The admin's pages of sales and of the lock policy, and orders in each state: accessible."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from shop.models import Order, Sale, User
from shop.purchase.place_order import place_order
from shop.sales.purchase_request import PurchaseRequest
from tests.browser.conftest import SHOTS, TOO_SMALL, TOO_WIDE

POLICY = "/admin/locking/lockpolicy/1/change/"
LOOKS = [(360, "light", "zh-CN"), (1280, "dark", "en-GB")]


@pytest.fixture(params=LOOKS, ids=[f"{width}-{scheme}" for width, scheme, _ in LOOKS])
def window(people, request: pytest.FixtureRequest) -> Iterator:
    width, scheme, locale = request.param
    viewport = {"width": width, "height": 780}
    yield lambda name: people(name, viewport=viewport, color_scheme=scheme, locale=locale)
    # axe adds inline styles, which the policy blocks; test_looks.py checks these pages without it.
    people.complaints[:] = [one for one in people.complaints if "inline style" not in one]


def violations(page: Page, name: str) -> list[tuple[str, str, str]]:
    page.screenshot(path=SHOTS / f"{name}-{page.viewport_size['width']}.png", full_page=True)
    found = Axe().run(page).response["violations"]
    grave = [one for one in found if one["impact"] in ("serious", "critical")]
    return [(name, one["id"], one["nodes"][0]["html"]) for one in grave]


def test_admin_pages_are_accessible(window):
    page, sale = window("amy"), Sale.objects.get(slug="speaker")
    found = []
    for name, path in {
        "admin-sales": "/admin/shop/sale/",
        "admin-sale": f"/admin/shop/sale/{sale.pk}/change/",
        "admin-new-sale": "/admin/shop/sale/add/",
    }.items():
        page.goto(path)
        found += violations(page, name)
    page.locator("[name=_save]").click()
    expect(page.locator(".errornote")).to_be_visible()
    found += violations(page, "admin-mistakes")
    page.goto(POLICY)
    found += violations(page, "admin-policy")
    page.locator("[name=backend]").select_option("none")
    page.locator("[name=mode]").select_option("naive")
    page.locator("[name=reason]").fill("to show it")
    page.locator("[name=_save]").click()
    field = page.locator("[name=confirm]")
    expect(field).to_be_focused()
    found += violations(page, "admin-confirm")
    field.fill("redis")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    found += violations(page, "admin-not-confirmed")
    assert found == []


def test_orders_in_each_state_are_accessible(window):
    page, sale = window("li"), Sale.objects.select_related("stock", "product").get(slug="speaker")
    li = User.objects.get(username="li")
    order = place_order(PurchaseRequest(customer_id=li.pk, sale=sale, quantity=1, key="k")).order
    found = []
    for status in Order.Status.values:
        Order.objects.update(status=status)
        page.goto(order.get_absolute_url())
        if status == Order.Status.PENDING:
            page.locator("main summary").click()
        assert page.evaluate(TOO_WIDE) <= 0, status
        assert page.evaluate(TOO_SMALL) == [], status
        found += violations(page, f"order-{status}")
    assert found == []


def test_sale_is_closed_after_its_name_was_typed(people):
    page, sale = people("amy"), Sale.objects.get(slug="speaker")
    page.goto("/admin/shop/sale/?q=speaker")
    page.locator(f"input[value='{sale.pk}']").check()
    page.locator("select[name=action]").select_option("close_now")
    page.get_by_role("button", name="Go", exact=True).click()
    page.get_by_label("Type “speaker” to confirm").fill("speaker")
    page.get_by_role("button", name="Close now").click()
    expect(page.get_by_text("speaker has ended.")).to_be_visible()
    assert Sale.objects.get(pk=sale.pk).phase() == Sale.Phase.ENDED
