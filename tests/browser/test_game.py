"""The game in a real Chromium: with htmx by keyboard, without script, readable in every look."""

import re
from io import StringIO
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import call_command
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import PHONE, TOO_WIDE, every_look, problems
from tests.browser.test_lab import SMALL_BUTTONS


def start(page: Page, level: str) -> None:
    page.goto(f"/learn/{level}/")
    page.get_by_role("button", name=re.compile("You are the scheduler|由您来调度", re.I)).click()
    page.wait_for_url(f"**/learn/{level}/play/")


def test_keyboard_wins_the_race_and_keeps_its_focus(people):
    page = people()
    start(page, "race")
    expect(page.locator("#latest")).to_have_text("")
    done = ""
    for buyer in "AABBBA":
        page.locator(f"#{buyer}-step").focus()
        page.keyboard.press("Enter")
        done = f"{done} {buyer}-step".strip()
        expect(page.locator("#game input[name=done]")).to_have_value(done)
        if done == "A-step":
            assert page.evaluate("document.activeElement.id") == "A-step"
            expect(page.locator("#latest")).to_contain_text("Buyer A goes on at once")
    expect(page.get_by_role("alert")).to_contain_text("You did it.")
    expect(page.get_by_role("button", name="Next level")).to_be_focused()
    expect(page.locator("#latest")).to_be_in_viewport()
    expect(page.locator("[data-level=race] .mark")).to_be_visible()
    page.locator("#undo").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator("#B-step")).to_be_enabled()
    page.reload()  # its address has the moves
    expect(page.locator("#game input[name=done]")).to_have_value(done.removesuffix(" A-step"))


@every_look
def test_game_fits_and_is_readable(people, look):
    page = people(**look)
    start(page, "fence")
    for done in ("A-step", "A-step B-step", "A-step B-step A-step"):
        page.locator(f"#{done[-6:]}").click()
        expect(page.locator("#game input[name=done]")).to_have_value(done)
        # B begins to wait for the lock.
        expect(page.locator("#A-step")).to_be_focused()
    assert problems(page, "game", small=SMALL_BUTTONS) == []


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
