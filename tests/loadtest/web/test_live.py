"""The page of a running load test: the curve, the buyers, and one announcement."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

import pytest
from django.test import Client

from loadtest.load.plan import Plan
from loadtest.models import LabRun
from loadtest.web import live, runs, tasks

PLAN = Plan(backends=("none", "redis"), disciplines=("naive",), buyers=60, stock=5)
HTMX = {"HX-Request": "true"}


def moment(sold: int, served: int, **other: Any) -> dict[str, Any]:
    """Return the saved progress of a run under `none`."""
    run = {
        **{"backend": "none", "discipline": "naive", "repeat": 1, "marks": [], "buyers": 60},
        **{"stock": 5, "sold": sold, "served": served, "oversold": max(0, sold - 5)},
        "sold_at": [(0.0, 0), (0.5, sold)],
    }
    return {"done": served, "of": 120, "per_second": 9, "left": 1, "now": "n", "run": run | other}


@pytest.fixture
def running(db: None) -> Iterator[LabRun]:
    """A run whose worker is alive."""
    run = LabRun.objects.create(plan=asdict(PLAN), state=LabRun.State.RUNNING)
    with runs.lock_of(run.pk):
        yield run


def polled(client: Client, run: LabRun, said: str = "", **progress: Any) -> str:
    LabRun.objects.filter(pk=run.pk).update(**progress)
    return client.get(f"{run.get_absolute_url()}?oversold={said}", headers=HTMX).text


def paths(svg: str) -> list[int]:
    """Return the number of signs in each path; the last of each is that of the legend."""
    tree = ElementTree.fromstring(svg)  # noqa: S314 - our own
    return [one.get("d", "").count("M") - 1 for one in tree.iter() if one.tag.endswith("path")]


def test_page_shows_units_and_buyers_in_words_and_pictures(client: Client, running: LabRun) -> None:
    page = polled(client, running, progress=moment(sold=8, served=30))
    assert "Without a lock: 8 sold of 5 in stock." in page
    for words in ("bought: 5", "bought beyond the stock: 3", "refused: 22", "waiting: 30"):
        assert f"{words}</text>" in page
    assert page.count("<svg") == 2
    assert "none: 8 / 5" in page
    whole = client.get(running.get_absolute_url()).text
    assert whole.count('role="status"') == 1, "a poll announces nothing"
    assert 'http-equiv="refresh" content="2"' in whole
    chinese = client.get(running.get_absolute_url(), headers={"accept-language": "zh-hans"}).text
    assert "超出库存买到: 3" in chinese


def test_overselling_is_announced_once(client: Client, running: LabRun) -> None:
    first = polled(client, running, progress=moment(sold=5, served=9))
    assert "#announce" not in first
    assert "?oversold=&quot;" not in first
    second = polled(client, running, progress=moment(sold=6, served=9))
    assert '<p hx-swap-oob="innerHTML:#announce">Without a lock: 6 sold of 5' in second
    assert "?oversold=none-naive-1" in second
    assert "#announce" not in polled(client, running, "none-naive-1")
    over = polled(client, running, "none-naive-1", state=LabRun.State.STOPPED, slot=None)
    assert '#announce">Load test: stopped</p>' in over


@pytest.mark.parametrize(
    ("buyers", "sold", "served", "signs"),
    [
        (60, 8, 30, [5, 3, 22, 30]),
        (60, 0, 0, [0, 0, 0, 60]),
        (200, 200, 200, [5, 195, 0, 0]),
        (2000, 1000, 1500, [1, 99, 50, 50]),
    ],
)
def test_each_sign_is_one_buyer_or_several(
    buyers: int, sold: int, served: int, signs: list[int]
) -> None:
    svg = live.dots(moment(sold, served, buyers=buyers)["run"])
    assert paths(svg) == signs
    assert ("One sign stands for 10 buyers." in svg) is (buyers == 2000)


def test_real_run_saves_its_curve(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker saves what the page shows, while buyers buy."""
    saved: list[dict[str, Any]] = []
    as_dict = runs.LoadProgress.as_dict

    def saving(load: runs.LoadProgress) -> dict[str, Any]:
        saved.append(json.loads(json.dumps(as_dict(load))))
        return saved[-1]

    monkeypatch.setattr(runs.LoadProgress, "as_dict", saving)
    run = runs.start(plan=PLAN, user=None)
    tasks.execute(str(run.pk))
    under_way = [one["run"] for one in saved if one.get("run")]
    assert under_way
    assert {one["buyers"] for one in under_way} == {60}
    assert all(one["sold_at"][-1][1] == one["sold"] for one in under_way)
