"""The lab in a real Chromium: from the button to a seen oversell, and the link signed out."""

import re
import subprocess
import sys
import time

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.conf import settings
from playwright.sync_api import expect

from loadtest.models import LabRun
from tests.browser.conftest import SHOTS, TOO_SMALL, TOO_WIDE
from tests.browser.test_looks import UNTRANSLATED

LOOKS = [
    {"viewport": {"width": width, "height": 800}, "color_scheme": scheme, "locale": locale}
    for width, scheme, locale in (
        (360, "light", "zh-CN"),
        (360, "dark", "en-GB"),
        (1280, "light", "en-GB"),
        (1280, "dark", "zh-CN"),
    )
]
KEPT = re.compile("manage.py|Linux|SET NX")
"""Names and commands are the same in every language."""
SMALL_BUTTONS = TOO_SMALL.replace("input:not([type=hidden])", "input[type=text]")


def look(page, name, path, looks):
    """It fits, can be read by everybody, and speaks the language it was asked for."""
    page.goto(path)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    size, scheme = looks["viewport"]["width"], looks["color_scheme"]
    page.screenshot(path=SHOTS / f"{name}-{size}-{scheme}.png", full_page=True)
    assert page.evaluate(TOO_WIDE) <= 0
    assert page.evaluate(SMALL_BUTTONS) == []
    found = Axe().run(page).response["violations"]
    grave = [one for one in found if one["impact"] in ("serious", "critical")]
    assert [(one["id"], one["nodes"][0]["html"]) for one in grave] == []
    if looks["locale"] == "zh-CN":
        words = page.evaluate(UNTRANSLATED)
        assert [one for one in words if not KEPT.search(one)] == []


@pytest.fixture
def worker(database_url, monkeypatch):
    """A real Celery worker on the same database and broker."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    command = ["-m", "celery", "-A", "shop", "--quiet", "worker", "--pool=solo", "-l", "error"]
    process = subprocess.Popen([sys.executable, *command], cwd=settings.BASE_DIR)
    yield
    process.terminate()
    process.wait(20)


def test_the_preset_oversells_and_the_link_shows_it_to_anybody(people, worker):
    page = people("amy")
    page.goto("/lab/")
    clicked = time.monotonic()
    page.get_by_role("button", name="Oversell now").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(
        re.compile(r"none sold \d+ of 50\. redis sold exactly 50\."), timeout=60_000
    )
    print(f"seen after {time.monotonic() - clicked:.1f} s")  # noqa: T201 - for whoever measures
    expect(page.locator("figure svg")).to_have_count(3)
    assert page.locator("figure svg polyline").count() == 2
    link = page.get_by_label("Share link").input_value()
    stranger = people(viewport={"width": 360, "height": 780}, java_script_enabled=False)
    stranger.goto(link)
    expect(stranger.get_by_role("heading", level=1)).to_contain_text("redis sold exactly 50.")
    assert stranger.get_by_role("button", name="Run it again").count() == 0
    assert LabRun.objects.get().state == LabRun.State.DONE
    for looks in LOOKS:
        look(people(**looks), "lab-run", link, looks)
        look(people("amy", **looks), "lab", "/lab/", looks)


def test_a_scenario_is_played_from_the_gallery(people, worker):
    page = people("amy")
    page.goto("/lab/scenarios/")
    page.get_by_role("button", name="Run it: SETNX without an expiry").click()
    expect(page.locator("figure svg")).to_have_count(2, timeout=60_000)
    expect(page.locator("article p").first).to_contain_text("Buyer A took the key with SETNX")
    link = page.get_by_label("Share link").input_value()
    for looks in LOOKS:
        look(people(**looks), "lab-scenario", link, looks)
        look(people("amy", **looks), "lab-scenarios", "/lab/scenarios/", looks)


def test_the_form_tells_its_command_line(people):
    page = people("amy")
    page.goto("/lab/")
    page.get_by_label("Fault").select_option("pause-holder")
    expect(page.locator("#command")).to_contain_text("--fault pause-holder")
    for name in ("Processes", "Threads of each"):
        page.get_by_label(name).fill("32")
        page.get_by_label(name).blur()
    expect(page.locator("#command .field-error")).to_contain_text("processes x threads")
