"""The lab in a real Chromium: from the button to a seen oversell, and the link signed out."""

import re
import subprocess
import sys
import time

import pytest
from django.conf import settings
from playwright.sync_api import expect

from loadtest.models import LabRun
from tests.browser.conftest import SHOTS, TOO_SMALL, TOO_WIDE


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
    for width in (360, 1280):
        for scheme in ("light", "dark"):
            seen = people(viewport={"width": width, "height": 900}, color_scheme=scheme)
            seen.goto(link)
            seen.screenshot(path=SHOTS / f"lab-run-{width}-{scheme}.png", full_page=True)
            assert seen.evaluate(TOO_WIDE) <= 0
            seen = people("amy", viewport={"width": width, "height": 900}, color_scheme=scheme)
            seen.goto("/lab/")
            expect(seen.get_by_role("button", name="Oversell now")).to_be_visible()
            seen.screenshot(path=SHOTS / f"lab-{width}-{scheme}.png", full_page=True)
            assert seen.evaluate(TOO_WIDE) <= 0
            assert seen.evaluate(TOO_SMALL.replace("input:not([type=hidden])", "button")) == []


def test_a_scenario_is_played_from_the_gallery(people, worker):
    page = people("amy")
    page.goto("/lab/scenarios/")
    page.get_by_role("button", name="Play it: SETNX without an expiry").click()
    expect(page.locator("figure svg")).to_have_count(2, timeout=60_000)
    expect(page.locator("article p").first).to_contain_text("Buyer A took the key with SETNX")
    link = page.get_by_label("Share link").input_value()
    for width in (360, 1280):
        for scheme in ("light", "dark"):
            seen = people(viewport={"width": width, "height": 900}, color_scheme=scheme)
            seen.goto(link)
            seen.screenshot(path=SHOTS / f"scenario-{width}-{scheme}.png", full_page=True)
            assert seen.evaluate(TOO_WIDE) <= 0
    page.goto("/lab/scenarios/")
    page.screenshot(path=SHOTS / "scenarios.png", full_page=True)


def test_the_form_tells_its_command_line(people):
    page = people("amy")
    page.goto("/lab/")
    page.get_by_label("Fault").select_option("pause-holder")
    expect(page.locator("#command")).to_contain_text("--fault pause-holder")
    for name in ("Processes", "Threads of each"):
        page.get_by_label(name).fill("32")
        page.get_by_label(name).blur()
    expect(page.locator("#command .fault")).to_contain_text("processes x threads")
