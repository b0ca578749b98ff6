"""The exported course in a real Chromium, from file://: every page, playback, and a level won."""

from io import StringIO
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import call_command
from playwright.sync_api import Browser, expect

from tests.browser.conftest import PHONE, TOO_WIDE, problems
from tests.browser.test_lab import SMALL_BUTTONS

CHECKED = ("fence", "play-fence", "play-owner")
"""Pages whose looks are checked in full."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("course")
    call_command("learn", "export", str(folder), stdout=StringIO())
    return folder


@pytest.mark.parametrize("language", [language for language, _name in settings.LANGUAGES])
def test_course_and_game_work_from_files(chromium: Browser, site: Path, language: str) -> None:
    page = chromium.new_context(**PHONE).new_page()
    faults: list[object] = []
    # A page that is left before its icon has come aborts the request.
    aborted = "net::ERR_ABORTED"
    page.on("requestfailed", lambda one: one.failure != aborted and faults.append(one.url))
    page.on("pageerror", lambda error: faults.append(error))
    page.on("console", lambda said: said.type == "error" and faults.append(said.text))
    page.goto((site / "index.html").as_uri())
    page.locator(f"a[lang={language}]").click()
    files = {file.stem: file.as_uri() for file in (site / language).glob("*.html")}
    page.wait_for_url(files["index"])  # until it has loaded
    for name, address in files.items():
        page.goto(address)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert page.evaluate(TOO_WIDE) <= 0, name

    page.goto(files["fence"])
    page.locator("[data-player] .scroll").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-player] [aria-current=step]").first).to_be_attached()

    page.goto(files["play-race"])
    mark = page.locator("[data-level=race] .mark")
    for buyer in "AABBBA":
        expect(mark).to_be_hidden()
        page.locator(f"#{buyer}-step").focus()
        page.keyboard.press("Enter")
    expect(page.locator(".won a").first).to_be_focused()
    expect(page.locator(".events li")).to_have_count(6)
    expect(page.locator(".diagram .oversold")).to_be_visible()
    page.locator("#undo").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.locator("#toggle").press("Enter")
    expect(page.locator(".proved")).to_be_visible()
    page.locator("[data-level=expire] a").click()
    page.wait_for_url(files["play-expire"])
    expect(mark).to_be_visible()  # this browser remembers it
    page.context.close()
    assert faults == []

    page = chromium.new_context(
        **PHONE
    ).new_page()  # axe asks for style sheets, which a file may not
    for name in CHECKED:
        page.goto(files[name])
        assert problems(page, f"static-{name}", small=SMALL_BUTTONS) == []
    page.context.close()
