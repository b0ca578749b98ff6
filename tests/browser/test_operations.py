"""Staff watch an open sale: the lock table updates, a switch drains, force asks first."""

import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from inventory.models import Stock
from loadtest.load.http import traffic
from locking.models import LockPolicy, LockPolicyChange
from shop.administration.alerts import audit_stock
from shop.models import Sale
from shop.operations import rates
from shop.operations.rates import start as start_rates  # which conftest.py replaces
from shop.sales.stock_lock import lock_name
from tests.browser.conftest import LOOKS, PHONE, TOO_SMALL, problems
from tests.shop.making import put_in_force
from tests.shop.staff import held


@pytest.fixture(autouse=True)
def stores(settings, redis_five, zookeeper):
    """All of them are up."""


def switched(**details: Any) -> None:
    """Put Redis in force, with a row about the switch to it."""
    put_in_force("redis", epoch=7)
    modes = {"from_mode": "conditional", "to_mode": "conditional"}
    row = {"epoch": 7, "from_backend": "database", "to_backend": "redis", **modes}
    LockPolicyChange.objects.create(**row | details)


def test_lock_table_updates(people):
    page = people("amy")
    page.goto("/ops/")
    table = page.locator("#table")
    expect(table).to_contain_text("No lock is held")
    sale = Sale.objects.select_related("stock").get(slug="teapot")
    with held(lock_name(sale.pk), waiters=2):
        row = table.locator("tr", has_text="teapot")
        expect(row.locator("td").last).to_have_text("2")
        page.get_by_role("link", name="Pause").click()
        expect(page.locator("#freshness")).to_contain_text("paused")
        expect(row).to_be_visible()
    page.get_by_role("link", name="Resume").click()
    expect(table).to_contain_text("No lock is held")


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Publish the rates of this process during the test, as a web process does."""
    start_rates("web")
    yield
    monkeypatch.setattr(rates, "add", lambda *_: sys.exit())  # ends the thread
    for thread in threading.enumerate():
        if thread.name == "rates":
            thread.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_charts_follow_test_traffic(people, published, live_server, monkeypatch):
    """The web process publishes what it counts; values and switches can be read by keyboard too."""
    switched(from_backend="none", from_mode="naive")
    page = people("amy")
    for _ in range(3):
        page.goto("/sales/missing/")
    page.goto("/ops/")
    expect(page.locator(".chart polyline").first).to_be_attached()
    expect(page.locator("#stores")).to_contain_text("1 web")
    expect(page.get_by_role("button", name="Send test traffic")).to_be_visible()
    monkeypatch.setattr(traffic, "BUYERS", 10)
    sales = Sale.objects.count()
    traffic.send_traffic(live_server.url)
    assert Sale.objects.count() == sales, "its sale is deleted"
    orders = page.locator(".chart", has_text="Orders per second")
    peak = re.compile(r"peak [1-9]\d*\.\d /s")
    expect(orders.locator("svg")).to_have_attribute("aria-label", peak)
    expect(page.get_by_role("button", name="Send test traffic")).to_be_visible()
    expect(page.locator("#minute ~ p")).to_contain_text("no lock → Redis + conditional")
    expect(orders.locator("line.switch")).to_have_count(1)
    orders.locator("svg").focus()
    expect(orders.locator("output")).to_have_text(re.compile(r"^0 s ago: \d+\.\d /s$"))
    ring = orders.locator("svg").bounding_box()
    assert ring["y"] + ring["height"] + 5 <= orders.locator(".now").bounding_box()["y"]
    for pressed in (1, 2):  # the chosen second outlives a refresh
        with page.expect_response(lambda response: "/ops/live/" in response.url):
            pass
        page.keyboard.press("ArrowLeft")
        expect(orders.locator("output")).to_contain_text(re.compile(f"^{pressed} s ago: "))
    page.locator(".chart svg").last.hover()
    expect(page.locator(".chart output").last).to_contain_text("s ago: ")
    page.locator(".chart svg").last.hover(position={"x": 5, "y": 5})
    expect(page.locator(".chart output").last).to_have_text(re.compile(r"^5[89] s ago: –$"))


def test_open_details_survive_updates(people):
    """Each update replaced the whole part, and closed what was open."""
    page = people("amy")
    page.goto("/ops/")
    page.get_by_text("Lock policy changes").click()
    switched(reason="seen later")
    expect(page.locator(".history")).to_contain_text("seen later")
    expect(page.locator(".history")).to_be_visible()


def test_a_switch_drains_while_the_sale_goes_on(people):
    page = people("amy")
    page.goto("/ops/")
    page.get_by_label("Switch to").select_option("zookeeper")
    page.get_by_label("Reason").fill("sale prep")
    with held("sale:1"):
        page.get_by_role("button", name="Switch safely").click()
        expect(page.locator("#drain")).to_contain_text("Waiting for 1 holder")
        expect(page.locator("#drain")).to_contain_text("Redis + conditional → ZooKeeper")
    expect(page.locator("#lock-policy")).to_contain_text("ZooKeeper + conditional")
    page.get_by_text("Lock policy changes").click()
    expect(page.locator(".history")).to_contain_text("sale prep")
    page.get_by_role("button", name="Back to redis").click()
    expect(page.locator("#lock-policy")).to_contain_text("Redis + conditional")
    assert LockPolicy.objects.get(pk=1).epoch == 3


def test_reason_of_a_failed_audit_is_first_and_on_a_phone(people):
    """It was cut, and in the last row."""
    page = people("amy", **PHONE)
    Stock.objects.filter(sale__slug="teapot").update(quantity=3)
    audit_stock()
    page.goto("/ops/?rate=0")
    row = page.locator("#stock-audit tbody tr").first
    expect(row).to_contain_text("teapot")
    box = row.locator("td", has_text="WRONG").bounding_box()
    assert box["x"] + box["width"] <= 360


def test_page_fits_and_is_accessible(people):
    people("amy")
    audit_stock()
    switched(changed_by="amy", reason="7", drained_ms=40)
    cells = TOO_SMALL.replace('"a, ', '"a:not(td a, th a), ')
    with held(lock_name(Sale.objects.get(slug="teapot").pk), waiters=1):
        for look in LOOKS:
            page = people("amy", **look)
            page.goto("/ops/?rate=0")
            expect(page.locator("#table")).to_contain_text("teapot")
            for one in page.locator("summary").all():
                one.click()
            assert problems(page, "ops", small=cells) == []
