"""The game in a real Chromium: with htmx by keyboard, without script, readable in every look."""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from django.urls import resolve
from playwright.sync_api import Page, expect

from loadtest.game import client as games
from tests.browser.conftest import every_look
from tests.browser.test_lab import check
from tests.loadtest.game.places import own_places  # noqa: F401 - a fixture


@pytest.fixture
def started() -> Iterator[list[Page]]:
    """The pages of games, which end with the test. The pages end first: they poll their games."""
    pages: list[Page] = []
    yield pages
    for page in pages:
        game = resolve(urlsplit(page.url).path).kwargs["game"]
        page.close()
        games.ask(game, "end")


def start(page: Page, level: str, started: list[Page]) -> str:
    page.goto(f"/learn/{level}/")
    page.get_by_role("button", name=re.compile("You are the scheduler|由您来调度", re.I)).click()
    page.wait_for_url("**/learn/games/**")
    started.append(page)
    return urlsplit(page.url).path


def test_keyboard_wins_the_race_and_keeps_its_focus(people, started):
    page = people()
    path = start(page, "race", started)
    expect(page.locator("#latest")).to_have_text("")
    for turn, buyer in enumerate("AABBBA", 1):
        page.locator(f"#{buyer}-step").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#game input[name=turn]")).to_have_value(str(turn))
        if turn == 1:
            assert page.evaluate("document.activeElement.id") == "A-step"
            expect(page.locator("#latest")).to_contain_text("Buyer A goes on at once")
    expect(page.get_by_role("alert")).to_contain_text("You did it.")
    expect(page.locator("[data-level=race] .mark")).to_be_visible()
    page.locator("#undo").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator("#B-step")).to_be_enabled()
    assert page.url.endswith(path)  # no page was loaded meanwhile


@every_look
def test_game_fits_and_is_readable(people, started, look):
    page = people(**look)
    path = start(page, "fence", started)
    for button in ("A-step", "B-step", "A-step"):
        page.locator(f"#{button}").click()
        page.wait_for_load_state("networkidle")
    check(page, "game", path)
