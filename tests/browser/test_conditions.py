"""The first sentence of /ops/ in each state of a whole shop, whose servers are really stopped."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from playwright.sync_api import Browser, Page, expect

from devservers import MariaDb, Redis, start_all, stop_all
from loadtest.resilience.processes import Celery, Consumer, Web
from tests.browser.conftest import sign_in

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]
SECONDS = 90_000
"""Milliseconds within which the page names a new state; jobs count as stopped after 30 s."""
NORMAL = "Selling normally"


def manage(*words: str) -> None:
    subprocess.run([sys.executable, ROOT / "manage.py", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def shop() -> Iterator[SimpleNamespace]:
    """A seeded shop: MariaDB, one Redis, a web server, a Celery worker, beat and a consumer."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        database, redis = MariaDb(), Redis()
        stack.callback(stop_all, [database, redis])
        start_all([database, redis])
        patch.setenv("DATABASE_URL", database.url)
        for name in ("REDIS_URL", "CACHE_URL", "CELERY_BROKER_URL"):
            patch.setenv(name, redis.url)
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("REDLOCK_URLS", "")
        patch.setenv("ZOOKEEPER_HOSTS", "")
        patch.setenv("DEBUG", "1")  # serves static files without collectstatic
        manage("migrate")
        manage("seed")
        web, worker, beat, consumer = Web(2), Celery("worker"), Celery("beat"), Consumer()
        stack.callback(stop_all, [web, worker, beat, consumer])
        web.start()
        for part in (worker, beat, consumer):
            part.launch()  # the page tells when they are at work
        yield SimpleNamespace(
            database=database, redis=redis, web=web, worker=worker, beat=beat, consumer=consumer
        )


@pytest.fixture(scope="module")
def ops(chromium: Browser, shop: SimpleNamespace) -> Iterator[Page]:
    """The operations page on a phone, open from the first test to the last."""
    viewport = {"width": 360, "height": 700}
    with chromium.new_context(base_url=shop.web.url, viewport=viewport) as context:
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
            assert part.bounding_box()["y"] + part.bounding_box()["height"] <= 700


@contextmanager
def normal_before_and_after(page: Page) -> Iterator[None]:
    expect_state(page, "good", NORMAL)
    yield
    expect_state(page, "good", NORMAL)


def test_redis_unavailable(ops, shop):
    with normal_before_and_after(ops):
        shop.redis.kill()
        expect_state(ops, "bad", "Purchases are failing: the active lock (Redis) stopped")
        expect(ops.locator("section", has_text="Last minute")).to_contain_text("Unknown: Redis")
        expect(ops.locator("#remedy")).to_have_text("Switch to database…")
        ops.locator("#remedy").click()
        expect(ops.get_by_label("Switch to")).to_have_value("database")
        shop.redis.start()


def test_mariadb_unavailable(ops, shop):
    """No permissions can be read then: the page shows what is public, and returns."""
    with normal_before_and_after(ops):
        shop.database.kill()
        expect_state(ops, "bad", "Purchases are failing: MariaDB stopped responding")
        expect(ops.locator("#live")).to_contain_text("Unknown until the store responds")
        shop.database.start()
        expect(ops.locator("#condition.good")).to_contain_text(NORMAL, timeout=SECONDS)
