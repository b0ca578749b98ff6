"""The first sentence of /ops/ in each state of a whole shop, whose servers are really stopped."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from django.conf import settings
from playwright.sync_api import Browser, Page, expect

from devservers import start_all, stop_all
from loadtest.kernel.topology import Topology
from loadtest.resilience.processes import Celery, Consumer, Web
from shop.celery import app
from tests.browser.conftest import sign_in

pytestmark = pytest.mark.long
SECONDS = 90_000
"""Milliseconds within which the page names a new state; jobs count as stopped after 30 s."""
NORMAL = "Selling normally"
STORES = Topology(
    database="mariadb",
    servers=["redis"],
    is_deployed=True,
    environ={"DEBUG": "1"},  # serves static files without collectstatic
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A seeded shop: MariaDB, one Redis, a web server, a Celery worker, beat and a consumer."""
    folder = tmp_path_factory.mktemp("shop")
    with (
        STORES.start(folder) as stores,
        pytest.MonkeyPatch.context() as patch,
        ExitStack() as stack,
    ):
        for name, value in stores.environ.items():
            patch.setenv(name, value)
        for command in ("migrate", "seed"):
            manage = [sys.executable, settings.BASE_DIR / "manage.py", command]
            subprocess.run(manage, check=True, capture_output=True)
        processes = [Web(2), Celery("worker"), Celery("beat"), Consumer()]
        stack.callback(stop_all, processes)
        # Forgets the connections to the broker of this shop.
        stack.callback(app._after_fork)  # noqa: SLF001
        start_all(processes)
        yield SimpleNamespace(**stores.servers, url=processes[0].url)


@pytest.fixture(scope="module")
def ops(chromium: Browser, shop: SimpleNamespace) -> Iterator[Page]:
    """The operations page on a phone, open from the first test to the last."""
    viewport = {"width": 360, "height": 700}
    with chromium.new_context(base_url=shop.url, viewport=viewport) as context:
        page = context.new_page()
        page.goto("/accounts/sign-in/?next=/ops/")
        sign_in(page, "amy")
        yield page


def expect_state(page: Page, level: str, sentence: str) -> None:
    """Expect the sentence on the open page, then on a new one, both within one phone screen."""
    first = page.locator(f"#condition.{level} .sentence")
    expect(first).to_contain_text(sentence, timeout=SECONDS)
    page.goto("/ops/")
    expect(first).to_contain_text(sentence)
    for part in (first, page.locator("#remedy")):
        if part.count():
            assert part.evaluate("one => one.getBoundingClientRect().bottom") <= 700


def test_redis_unavailable(ops, shop):
    expect_state(ops, "good", NORMAL)
    shop.redis.kill()
    expect_state(ops, "bad", "Purchases are failing: the active lock (Redis) stopped")
    expect(ops.locator("section", has_text="Last minute")).to_contain_text("Unknown: Redis")
    expect(ops.locator("#remedy")).to_have_text("Switch to database…")
    ops.locator("#remedy").click()
    expect(ops.get_by_label("Switch to")).to_have_value("database")
    shop.redis.start()
    expect_state(ops, "good", NORMAL)


def test_mariadb_unavailable(ops, shop):
    """No permissions can be read then: the page shows what is public, and returns."""
    expect_state(ops, "good", NORMAL)
    shop.database.kill()
    expect_state(ops, "bad", "Purchases are failing: MariaDB stopped responding")
    expect(ops.locator("#live")).to_contain_text("Unknown until the store responds")
    shop.database.start()
    expect_state(ops, "good", NORMAL)
