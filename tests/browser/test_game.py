"""The game in a real Chromium: with htmx by keyboard, without script, readable in every look."""

import re

from playwright.sync_api import Page, expect

from tests.browser.conftest import every_look, problems
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
