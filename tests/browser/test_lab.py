"""The lab in a real Chromium: from the button to a seen oversell, and the link signed out."""

import dataclasses
import os
import re
import subprocess
import sys

import pytest
from django.conf import settings
from playwright.sync_api import expect

from loadtest.models import LabRun
from loadtest.scenarios.course import COURSE
from loadtest.web import runs, views
from tests.browser.conftest import LOOKS, PHONE, TOO_SMALL, problems

SMALL_BUTTONS = TOO_SMALL.replace("input:not([type=hidden])", "input[type=text]")
WAIT = 150_000
"""Milliseconds in which a worker has started and a run has ended, on a loaded machine."""


def check(page, name, path):
    """It fits, can be read by everybody, and speaks the language it was asked for."""
    page.goto(path)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert problems(page, name, small=SMALL_BUTTONS) == []


@pytest.fixture(scope="module")
def worker(test_database_url):
    """A real Celery worker on the same database and broker."""
    command = ["-m", "celery", "-A", "shop", "--quiet", "worker", "--pool=solo", "-l", "error"]
    env = {**os.environ, "DATABASE_URL": test_database_url}
    process = subprocess.Popen([sys.executable, *command], cwd=settings.BASE_DIR, env=env)
    yield
    process.terminate()
    process.wait(60)


def test_the_preset_oversells_and_the_link_shows_it_to_anybody(people, worker, monkeypatch):
    """With two runs of each lock instead of five."""
    small = dataclasses.replace(runs.OVERSELL_IN_TEN_SECONDS, repeats=2)
    monkeypatch.setitem(runs.PRESETS, "oversell", small)
    monkeypatch.setattr(views, "PRESET", small)
    page = people("amy")
    page.goto("/lab/")
    page.get_by_role("button", name="Run the demo").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(
        re.compile(r"Without a lock: [\d–]+ sold of 50 .* With Redis: exactly 50 in each of 2"),
        timeout=WAIT,
    )
    expect(page).to_have_title(re.compile("^Without a lock: "))  # not: waiting for a worker
    expect(page.get_by_text("4 of 4 runs ended as")).to_be_visible()
    expect(page.locator("figure svg")).to_have_count(4)
    expect(page.locator(".why")).to_contain_text("before either wrote")
    verdicts = page.locator("details .verdict").all_text_contents()
    assert verdicts == ["oversold", "exact"] * 2
    assert page.locator("figure svg polyline").count() == 2
    figure = page.locator("figure", has=page.locator(".replay")).first
    at_the_end = figure.locator(".buyers").text_content()
    figure.get_by_role("button", name="ten times slower").click()
    expect(figure.locator("output")).to_have_text(re.compile(r"\d s: \d+ sold of 50 in stock"))
    assert figure.locator(".buyers").text_content() != at_the_end
    figure.get_by_role("button", name="Stop").click()
    expect(figure.locator(".buyers")).to_have_text(at_the_end)
    link = page.get_by_label("Anyone with this link").input_value()
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    stranger = people(**PHONE, java_script_enabled=False)
    stranger.goto(link)
    expect(stranger.locator(".replay").first).to_be_hidden()
    expect(stranger.get_by_role("heading", level=1)).to_contain_text("With Redis: exactly 50")
    expect(stranger.get_by_role("button", name="pause its holder")).to_be_visible()
    abroad = people(timezone_id="America/New_York", locale="en-US")
    abroad.goto(link)
    expect(abroad).to_have_title(re.compile(r" · \d\d:\d\d · "))  # as the footer says, not UTC+8
    assert LabRun.objects.get().state == LabRun.State.DONE
    for look in LOOKS:
        check(people(**look), "lab-run", link)
        run = LabRun.objects.get().pk
        check(people(**look), "lab-compare", f"/lab/compare/?a={run}&b={run}")


def test_visitor_runs_a_step_of_the_course(people, worker):
    page = people()
    page.goto("/learn/")
    expect(page.locator(".preview svg")).to_have_count(len(COURSE))
    page.get_by_role("link", name="3 · SETNX and a crash").click()
    page.get_by_role("button", name="Run it here – SETNX without an expiry").click()
    expect(page.locator("figure svg")).to_have_count(2, timeout=WAIT)
    expect(page.locator("article li").first).to_contain_text("Buyer A took the key with SETNX")
    expect(page.locator(".now")).to_contain_text("Buyer A asks for the lock.")
    link = page.get_by_label("Anyone with this link").input_value()
    with page.expect_download() as download:
        page.get_by_role("button", name="PNG · repaired").click()
    assert download.value.path().read_bytes().startswith(b"\x89PNG")
    for look in LOOKS:
        check(people(**look), "lab-scenario", link)
    page.get_by_role("link", name="Back to the step").click()
    page.get_by_role("button", name="Next: SETNX, then EXPIRE").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("SETNX, then EXPIRE")


def test_course_remembers_the_steps_that_were_seen(people):
    page = people()
    page.goto("/learn/late-check/")
    page.get_by_role("link", name="All steps").click()
    expect(page.locator("[data-seen] output")).to_have_text(["0", "1"])
    expect(page.locator("li.seen")).to_have_text(re.compile("A check after the decrement"))
    for look in LOOKS:
        for path in ("queue/", "payment-lock/"):  # test_looks.py has the others
            check(people(**look), f"learn-{path.strip('/')}", f"/learn/{path}")


def test_interview_questions(people):
    """Without script, an anchor leads to its question, and a place in the code opens its lines."""
    page = people(**PHONE, java_script_enabled=False)
    page.goto("/learn/questions/#lua")
    expect(page.locator("#lua")).to_be_in_viewport()
    page.locator("section[aria-labelledby=lua] summary").click()
    expect(page.locator("section[aria-labelledby=lua] pre")).to_be_visible()
    for look in LOOKS:
        page = people(**look)
        page.goto("/learn/questions/")
        page.locator(".evidence summary").first.click()
        assert problems(page, "learn-questions", small=SMALL_BUTTONS) == []


def test_fault_is_injected_by_button_while_units_are_sold(people, worker):
    """The figures change four times a second; the focus stays on the button."""
    page = people("amy")
    polls = []
    page.on("response", lambda one: "oversold=" in one.url and polls.append(one))
    page.goto("/lab/")
    page.get_by_label("no lock", exact=True).uncheck()
    page.get_by_label("Buyers").fill("400")
    page.get_by_label("Stock", exact=True).fill("300")
    page.get_by_label("Runs of each lock").fill("1")
    page.get_by_label("Payment check (ms)").fill("50")  # the run outlasts the looks at it
    page.get_by_role("button", name="Run load test").click()
    pause = page.get_by_role("button", name="Pause the holder")
    expect(page.locator("#figures svg")).to_be_visible(timeout=WAIT)
    pause.click()
    expect(page.locator("#announce")).to_have_text(re.compile("Requested."))
    expect(page.locator("#figures svg")).to_contain_text("Pause the holder")
    expect(page.locator("#fault-note")).to_be_empty()
    assert LabRun.objects.get().state == LabRun.State.RUNNING
    expect(pause).to_be_focused()
    run = LabRun.objects.get().get_absolute_url()
    for look in LOOKS:
        check(people("amy", **look), "lab-live", run)
    expect(page.locator("#share")).to_be_visible(timeout=WAIT)
    expect(page.locator("main")).to_contain_text("stopped (state T)")
    expect(page.locator("#announce")).to_contain_text("With Redis: ")
    assert len(polls) > 5  # every 0.24 to 0.35 s on a quiet machine
