"""The grid shows every variant of every scenario once, by its fault and its guard."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from loadtest.load.plan import BACKENDS
from loadtest.models import LabRun
from loadtest.scenarios import SCENARIOS, export
from loadtest.scenarios.scenario import FAULTS
from loadtest.web.learn import NO_LOCK, RECIPE, guard_of

pytestmark = pytest.mark.django_db


def test_guards_are_grouped_by_lock_and_fence() -> None:
    variants = [(one.broken, one.repaired) for one in SCENARIOS.values()]
    guards = {guard_of(guard) for pair in variants for guard in pair}
    locks = {guard.removesuffix(" + fenced") for guard in guards - {NO_LOCK, RECIPE}}
    assert locks <= set(BACKENDS)
    assert {NO_LOCK, RECIPE, "redis", "redis + fenced", "redlock + fenced"} <= guards
    assert guard_of("SETNX, DEL") == RECIPE
    assert guard_of("redis + naive, one replica") == "redis"
    assert guard_of("no lock + naive") == NO_LOCK


def test_each_picture_opens_its_timeline(client: Client) -> None:
    page = client.get(reverse("learn-grid")).text
    links = re.findall(r'<a href="(/learn/[\w-]+/)#([\w-]+)"><svg', page)
    expected = [f"{name}-{half}" for name in SCENARIOS for half in ("broken", "repaired")]
    assert sorted(anchor for _path, anchor in links) == sorted(expected)
    assert page.count(">No run<") > 0
    assert page.count("</span> breaks") == page.count("</span> holds") == len(SCENARIOS)
    assert {scenario.fault for scenario in SCENARIOS.values()} == set(FAULTS)
    for path in dict.fromkeys(path for path, _anchor in links):
        lesson = client.get(path).text
        for anchor in (anchor for there, anchor in links if there == path):
            assert f'id="{anchor}"' in lesson


def test_run_of_this_machine_replaces_the_recorded_one(client: Client) -> None:
    result = export.recorded()["results"]["no-lock"]
    LabRun.objects.create(
        kind=LabRun.Kind.SCENARIO,
        plan={"scenario": "no-lock"},
        state=LabRun.State.DONE,
        slot=None,
        report={"versions": {}, "scenarios": [result]},
    )
    page = client.get(reverse("learn-grid")).text
    assert page.count("</span> Run here") == 2
    assert page.count("</span> Recorded") == 2 * len(SCENARIOS) - 2
