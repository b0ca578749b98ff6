"""One Chromium and one server for the session; windows on the seeded shop for each test."""

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.conf import settings as django_settings
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from devservers.programs import required
from shop.management.commands.seed import PASSWORD
from shop.models import Order, Sale, User
from shop.wsgi import application
from tests.shop.making import put_in_force
from tests.shop.purchases import buy

expect.set_options(timeout=45_000)  # as many processes as there are may be at work
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
TOO_SMALL = """[
  ...document.querySelectorAll("a, button, select, summary, input:not([type=hidden])")]
  .filter(one => !one.closest(".skip") && one.offsetWidth && one.offsetHeight < 44)
  .map(one => one.outerHTML)"""
UNTRANSLATED = """(() => {
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (words.nextNode())
    if (/[A-Za-z]{2,} [A-Za-z]{2,}/.test(words.currentNode.data)
        && !words.currentNode.parentElement.closest("[translate=no]")
        && words.currentNode.parentElement.checkVisibility()) found.push(words.currentNode.data);
  return found;
})()"""
KEPT = re.compile("manage.py|Linux|SET NX")
"""Names and commands that are the same in every language."""
PHONE = {"viewport": {"width": 360, "height": 780}}
LOOKS = [
    {"viewport": {"width": width, "height": 780}, "color_scheme": scheme, "locale": locale}
    for width, scheme, locale in ((360, "light", "zh-CN"), (1280, "dark", "en-GB"))
]
every_look = pytest.mark.parametrize(
    "look", LOOKS, ids=lambda look: f"{look['viewport']['width']}-{look['color_scheme']}"
)
with_and_without_script = pytest.mark.parametrize(
    "script", [True, False], ids=["script", "no script"]
)
complaints: list[str] = []
"""Of the scripts on all pages of a test."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.django_db(transaction=True))


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    program = required("chromium")
    # Playwright's own event loop is no reason to keep this thread from the database.
    with (
        pytest.MonkeyPatch.context() as patch,
        sync_playwright() as playwright,
    ):
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def live_server(chromium: Browser, live_server: LiveServer) -> LiveServer:
    """The shop as gunicorn serves it, with purchase tokens."""
    live_server.thread.httpd.set_app(StaticFilesHandler(application))
    return live_server


@pytest.fixture
def people(chromium: Browser, live_server, settings, transactional_db) -> Iterator[Callable]:
    """`people("li")` opens a window on the seeded shop; in the end, no script may have complained.

    Signed in, unless the name is empty; further options are Playwright's.
    """
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.LOCK_TIMEOUT = settings.HARD_DEADLINE = 60.0  # a purchase succeeds on a slow machine
    put_in_force("redis")
    cache.clear()
    call_command("seed", stdout=StringIO())
    contexts = []
    complaints.clear()

    def window(name: str = "", **options: object) -> Page:
        context = chromium.new_context(base_url=live_server.url, **options)
        context.set_default_timeout(45_000)
        contexts.append(context)
        if name:
            client = Client()
            client.force_login(User.objects.get(username=name))
            cookie = client.cookies[django_settings.SESSION_COOKIE_NAME]
            context.add_cookies(
                [{"name": cookie.key, "value": cookie.value, "url": live_server.url}]
            )
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console", lambda message: message.type == "error" and complaints.append(message.text)
        )
        return page

    yield window
    for context in contexts:
        context.close()
    # A refusal is an answer; the browser logs it as an error all the same.
    assert [message for message in complaints if "Failed to load resource" not in message] == []


def sign_in(page: Page, name: str = "li") -> None:
    """Through the form."""
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.locator("main form button").first.click()


def problems(page: Page, name: str, *, of_shop: bool = True, small: str = TOO_SMALL) -> list:
    """Return what is wrong with the looks of a page; a staff page may differ.

    Every page fits its screen and is accessible; one of the shop is in one language, and easy to
    touch.
    """
    page.wait_for_load_state()  # after a click, the style sheets may come later than the text
    language = page.locator("html").get_attribute("lang")
    known = len(complaints)
    violations = Axe().run(page).response["violations"]
    del complaints[known:]  # axe adds inline styles, which the policy blocks
    found = [
        (one["id"], one["nodes"][0]["html"])
        for one in violations
        if one["impact"] in ("serious", "critical")
    ]
    found += ["wider than the screen"] if page.evaluate(TOO_WIDE) > 0 else []
    if of_shop:
        found += page.evaluate(small)
    if of_shop and language == "zh-hans":
        found += [text for text in page.evaluate(UNTRANSLATED) if not KEPT.search(text)]
    return [(name, one) for one in found]


def bought(slug: str) -> Order:
    """Buy a unit of a sale as li."""
    return buy(Sale.objects.get(slug=slug), customer=User.objects.get(username="li")).order


def opens_in(slug: str, seconds: float) -> datetime:
    """Change the opening of a sale, and return it."""
    sale = Sale.objects.get(slug=slug)
    sale.opens_at = timezone.now() + timedelta(seconds=seconds)
    sale.save()
    return sale.opens_at
