"""The course: public pages, in the order of its scenarios, with code from the source."""

from __future__ import annotations

import pytest
from django.template.loader import render_to_string
from django.test import Client
from django.urls import reverse
from django.utils import translation

from loadtest.charts.source import Excerpt, diff
from loadtest.models import LabRun
from loadtest.scenarios import SCENARIOS
from loadtest.scenarios.course import COURSE, Step
from loadtest.scenarios.scenario import REGISTERED
from loadtest.web import tasks

MOST_WORDS = 90


def test_course_shows_every_scenario_once_in_the_order_of_the_list() -> None:
    assert [name for step in COURSE for name in step.scenarios] == list(SCENARIOS)
    assert SCENARIOS.keys() == REGISTERED.keys()
    assert len(COURSE) == 15


@pytest.mark.parametrize("step", COURSE, ids=lambda step: step.name)
def test_step_is_short_and_its_code_is_that_of_the_source(step: Step) -> None:
    with translation.override("en"):
        text = render_to_string("learn/_text.html", {"step": step})
        assert 20 < len(f"{text} {step.notice}".split()) <= MOST_WORDS
    lines = list(diff(step.broken, step.repaired))
    assert [line.sign for line in lines].count("!") == 1
    assert "+" in {line.sign for line in lines}
    assert len(lines) <= 20


def test_code_that_is_no_longer_in_the_source_is_an_error() -> None:
    with pytest.raises(ValueError, match="no line contains 'no such line'"):
        Excerpt("inventory/stock.py", "WRITE = ", "no such line").lines()


def test_every_step_has_a_picture_before_its_first_run(client: Client, db: None) -> None:
    page = client.get(reverse("learn")).text
    assert page.count('class="preview"') == page.count('class="timeline"') == len(COURSE)
    assert page.count("Not run here yet.") == len(COURSE)
    assert page.index("SETNX and a crash") < page.index("A paused holder")


@pytest.mark.parametrize("step", COURSE, ids=lambda step: step.name)
def test_page_of_a_step(step: Step, client: Client, db: None) -> None:
    page = client.get(reverse("learn-step", args=[step.name])).text
    assert page.count('class="timeline"') == 2 * len(step.scenarios)
    assert page.count("Not run here yet.") == len(step.scenarios)
    assert page.count("<mark>") == 1
    for name in step.scenarios:
        assert reverse("lab-play", args=[name]) in page


def test_unknown_step_is_not_found(client: Client, db: None) -> None:
    assert client.get(reverse("learn-step", args=["earthquake"])).status_code == 404


def test_visitor_starts_a_scenario_within_the_limit(client, db, settings, monkeypatch) -> None:
    monkeypatch.setattr(tasks.execute, "delay", lambda run: None)
    settings.LAB_GUEST_LIMIT = "1/minute"
    play = reverse("lab-play", args=["setnx-without-expiry"])
    assert client.post(play).status_code == 302
    assert LabRun.objects.get().created_by is None
    assert client.post(play).status_code in (409, 429)
    LabRun.objects.update(slot=None, state=LabRun.State.DONE)
    assert client.post(play).status_code == 429
