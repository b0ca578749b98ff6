"""One Chromium and one server for the session; windows on the seeded shop for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client
from playwright.sync_api import Browser, Page, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from devservers.programs import required
from shop.management.commands.seed import PASSWORD
from shop.models import User
from shop.wsgi import application
from tests.shop.making import put_in_force

expect.set_options(timeout=20_000)  # as many processes as there are may be at work
SHOTS = Path(django_settings.BASE_DIR) / "var" / "screenshots"
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
TOO_SMALL = """[...document.querySelectorAll("a, button, select, input:not([type=hidden])")]
  .filter(one => !one.closest(".skip") && one.offsetWidth && one.offsetHeight < 44)
  .map(one => one.outerHTML)"""


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
    put_in_force("redis")
    cache.clear()
    call_command("seed", stdout=StringIO())
    SHOTS.mkdir(parents=True, exist_ok=True)
    contexts, complaints = [], []

    def window(name: str = "", **options: object) -> Page:
        context = chromium.new_context(base_url=live_server.url, **options)
        context.set_default_timeout(20_000)
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

    window.complaints = complaints
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
