"""The course and its grid: public pages, in the order of the scenarios, with code of the source."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse
from django.utils import translation

from loadtest.charts.source import Excerpt, diff
from loadtest.scenarios import SCENARIOS
from loadtest.scenarios.course import COURSE, PARTS, Step
from loadtest.scenarios.scenario import REGISTERED
from loadtest.texts import texts

MOST_WORDS = 90


def test_course_shows_every_scenario_once_in_the_order_of_the_list() -> None:
    assert [name for step in COURSE for name in step.scenarios] == list(SCENARIOS)
    assert SCENARIOS.keys() == REGISTERED.keys()


def facts_of(found: Any, path: str = "") -> Iterator[tuple[str, list[str]]]:
    """The path of each text, and the facts that it names."""
    for name, one in found.items():
        if isinstance(one, str):
            yield f"{path}/{name}", sorted(re.findall(r"%\(\w+\)[.\d]*[dfs]|\{\w+\}", one))
        else:
            yield from facts_of(one, f"{path}/{name}")


def test_texts_are_the_same_in_each_language() -> None:
    found = []
    for language, _name in settings.LANGUAGES:
        with translation.override(language):
            found.append(dict(facts_of(texts())))
            assert texts()["scenarios"].keys() == SCENARIOS.keys()
            assert all(one.texts["story"].count("\n") == 2 for one in SCENARIOS.values())
    assert found[0] == found[1]


@pytest.mark.parametrize("step", COURSE, ids=lambda step: step.name)
def test_step_is_short_and_its_code_is_that_of_the_source(step: Step) -> None:
    with translation.override("en"):
        text = f"{step.texts['text']} {step.texts['notice']}"
    assert 20 < len(text.split()) <= MOST_WORDS
    lines = list(diff(step.broken, step.repaired))
    assert [line.sign for line in lines].count("!") == 1
    assert "+" in {line.sign for line in lines}
    assert len(lines) <= 20


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_immune_locks_have_the_names_of_other_pages(language: str) -> None:
    """Not their aliases in the settings."""
    with translation.override(language):
        immune = [one.texts["immune"] for one in SCENARIOS.values()]
    assert "ZooKeeper" in " ".join(immune)
    alias = re.compile(r"\b(?:redis|redlock|zookeeper|none)\b|_", re.ASCII)
    assert [text for text in immune if alias.search(text)] == []


def test_lesson_shows_code_without_the_fail_points_of_the_lab() -> None:
    """Except where a process dies between two lines; no excerpt begins with a docstring."""
    shown = {one.name: [line.text for line in diff(one.broken, one.repaired)] for one in COURSE}
    assert [name for name, lines in shown.items() if "reach(" in " ".join(lines)] == ["expire"]
    assert [name for name, lines in shown.items() if lines[0].startswith('"""')] == []


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


def test_grid_shows_each_variant_once_and_opens_its_timeline(client: Client, db: None) -> None:
    page = client.get(reverse("learn-grid")).text
    links = re.findall(r'<a href="(/learn/[\w-]+/)#([\w-]+)" class="(?:broken|repaired)"', page)
    expected = [f"{name}-{half}" for name in SCENARIOS for half in ("broken", "repaired")]
    assert sorted(anchor for _path, anchor in links) == sorted(expected)
    assert {scenario.fault for scenario in SCENARIOS.values()} == texts()["faults"].keys()
    for step in COURSE:
        address = reverse("learn-step", args=[step.name])
        lesson = client.get(address).text
        anchors = [anchor for path, anchor in links if path == address]
        assert len(anchors) == lesson.count('class="timeline"') == 2 * len(step.scenarios)
        assert all(f'id="{anchor}"' in lesson for anchor in anchors)
        assert "Recorded on real servers" in lesson
        assert lesson.count("<mark>") == 1
        assert all(reverse("lab-play", args=[name]) in lesson for name in step.scenarios)
