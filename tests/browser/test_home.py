"""The home page follows its sales: one small poll, and countdowns between two polls."""

from __future__ import annotations

import re
from datetime import timedelta

from django.utils import timezone
from playwright.sync_api import expect

from inventory.models import Stock
from shop.models import Sale


def opens_in(slug: str, seconds: float) -> None:
    sale = Sale.objects.get(slug=slug)
    sale.opens_at = timezone.now() + timedelta(seconds=seconds)
    sale.save()


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
    expect(camera).to_contain_text("● Live", timeout=40_000)
    expect(camera.locator("time:visible")).to_have_text(re.compile("^Ends in "))
    expect(camera.get_by_role("link")).to_be_focused()
    assert loads == []
    assert min(polls) < 6000, "states only"


def test_poll_is_small_slow_and_pauses_in_a_hidden_tab(people):
    page = people()
    page.clock.install()
    page.goto("/")
    polls = []
    page.on("request", lambda request: "/live/" in request.url and polls.append(request.url))
    with page.expect_response("**/live/**"):
        page.clock.run_for(6_000)
    assert len(polls) == 1
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    page.clock.run_for(60_000)
    assert len(polls) == 1
    page.evaluate("Object.defineProperty(document, 'hidden', {value: false})")
    with page.expect_response("**/live/**"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    assert len(polls) == 2


def test_home_without_script_names_the_times(people):
    page = people(java_script_enabled=False)
    page.goto("/")
    bicycle = page.get_by_role("listitem").filter(has_text="City Bicycle")
    expect(bicycle).to_contain_text(re.compile(r"Opens .*\d\d:\d\d UTC\+8"))
    expect(page.locator("footer")).to_contain_text("All times are UTC+8.")


def test_hero_starts_the_demo_without_an_account(people):
    """The test of the lab runs it; here no worker takes it."""
    page = people()
    page.goto("/")
    page.get_by_role("button", name="Run the demo").click()
    expect(page).to_have_url(re.compile("/lab/runs/"))
    other = people(java_script_enabled=False)
    other.goto("/")
    other.get_by_role("button", name="Run the demo").click()
    expect(other.get_by_role("heading", level=1)).to_have_text("A load test is already running")
    other.get_by_role("button", name="Go to the running test").click()
    expect(other).to_have_url(page.url)
