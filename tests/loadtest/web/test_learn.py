"""The course and its grid: public pages, in the order of the scenarios, with code of the source."""

from __future__ import annotations

import re

import pytest
from django.template.loader import render_to_string
from django.test import Client
from django.urls import reverse
from django.utils import translation

from loadtest.charts.source import Excerpt, diff
from loadtest.models import LabRun
from loadtest.scenarios import SCENARIOS
from loadtest.scenarios.course import COURSE, PARTS, Step
from loadtest.scenarios.scenario import FAULT_TITLES, REGISTERED

MOST_WORDS = 90
each_step = pytest.mark.parametrize("step", COURSE, ids=lambda step: step.name)


def test_course_shows_every_scenario_once_in_the_order_of_the_list() -> None:
    assert [name for step in COURSE for name in step.scenarios] == list(SCENARIOS)
    assert SCENARIOS.keys() == REGISTERED.keys()


@each_step
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
    assert page.count('class="preview"><svg') == len(COURSE)
    for part in PARTS:
        section = page.partition(f'<section aria-labelledby="{part.name}">')[2].split("</section>")[
            0
        ]
        links = re.findall(r'<h3><a href="/learn/([\w-]+)/">', section)
        assert links == [step.name for step in part.steps]
    assert client.get(reverse("learn-step", args=["earthquake"])).status_code == 404


@each_step
def test_page_of_a_step(step: Step, client: Client, db: None) -> None:
    page = client.get(reverse("learn-step", args=[step.name])).text
    assert page.count('class="timeline"') == 2 * len(step.scenarios)
    assert "Recorded on real servers" in page
    assert page.count("<mark>") == 1
    for name in step.scenarios:
        assert reverse("lab-play", args=[name]) in page


def test_grid_shows_each_variant_once_and_opens_its_timeline(client: Client, db: None) -> None:
    page = client.get(reverse("learn-grid")).text
    links = re.findall(r'<a href="(/learn/[\w-]+/)#([\w-]+)" title=', page)
    expected = [f"{name}-{half}" for name in SCENARIOS for half in ("broken", "repaired")]
    assert sorted(anchor for _path, anchor in links) == sorted(expected)
    assert page.count(" breaks</span>") == page.count(" holds</span>") == len(SCENARIOS)
    assert {scenario.fault for scenario in SCENARIOS.values()} == set(FAULT_TITLES)
    lessons = {path: client.get(path).text for path in dict(links)}
    assert all(f'id="{anchor}"' in lessons[path] for path, anchor in links)


def test_run_of_a_visitor_is_linked_beside_the_recording(client: Client, db: None) -> None:
    pages = [reverse("learn"), reverse("learn-grid"), reverse("learn-step", args=["race"])]
    before = [client.get(page).text.count("<svg") for page in pages]
    report = {"versions": {}, "scenarios": [{"name": "no-lock", "halves": []}]}
    done = {"state": LabRun.State.DONE, "slot": None, "report": report}
    plan = {"scenario": "no-lock"}
    run = LabRun.objects.create(kind=LabRun.Kind.SCENARIO, plan=plan, **done)
    texts = [client.get(page).text for page in pages]
    assert [text.count("<svg") for text in texts] == before
    assert f'href="{run.get_absolute_url()}">Newest run here' in texts[2]
