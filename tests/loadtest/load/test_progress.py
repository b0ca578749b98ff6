"""The progress of a load test: buyers served, and the curve of the run under way."""

from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.load.progress import CURVE_POINTS, LoadProgress

NAMES = {"backend": "none", "discipline": "naive", "repeat": 1}


def planned(*, runs: int = 2) -> LoadProgress:
    load = LoadProgress()
    load.update({"event": "plan", "buyers": 20, "runs": runs, "stock": 5})
    return load


def moment(at: float, served: int, sold: int, **names: Any) -> dict[str, Any]:
    figures = {"at": at, "served": served, "sold": sold, "marks": [], "requested": "none"}
    return {"event": "progress", **NAMES, **figures, **names}


def ended(sold: int, **names: Any) -> dict[str, Any]:
    figures = {"stock": 5, "sold": sold, "oversold": max(0, sold - 5), "marks": []}
    figures["lost_updates"] = None
    why = {"verdict": "oversold" if sold > 5 else "ok", "why": "", "sold_at": [(0.0, 0), (1, sold)]}
    return {"event": "run", "run": {**NAMES, **figures, **why, **names}}


def test_progress_follows_the_run_under_way() -> None:
    load = planned()
    for event in (moment(0.1, 2, 2), moment(0.2, 9, 7)):
        assert load.update(event)
    now = load.as_dict()
    assert (now["done"], now["of"], now["now"]) == (9, 40, "none + naive #1")
    run = now["run"]
    assert run["sold_at"] == [(0.0, 0), (0.1, 2), (0.2, 7)]
    assert (run["sold"], run["oversold"], run["buyers"]) == (7, 2, 20)
    load.update(ended(8))
    assert (load.done, load.run) == (20, None)
    assert load.update(moment(0.1, 1, 1, backend="redis"))
    assert (load.done, load.as_dict()["run"]["sold_at"]) == (21, [(0.0, 0), (0.1, 1)])


def test_runs_that_did_not_take_place_served_no_buyer(monkeypatch: pytest.MonkeyPatch) -> None:
    """They count as done, and the rate is that of the others."""
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("loadtest.load.progress.time", clock)
    load, now = planned(runs=4), 10.0
    for event in (ended(0, verdict="not-run"), moment(0.1, 1, 1)):
        load.update(event)
    now = 12.0
    load.update(moment(2.1, 8, 5))
    found = load.as_dict()
    assert (found["done"], found["of"], found["per_second"], found["left"]) == (28, 80, 4, 13)


def test_long_curve_is_thinned_out_but_keeps_its_ends() -> None:
    load = planned()
    for n in range(1, 10 * CURVE_POINTS):
        load.update(moment(n / 10, n, n))
    assert load.run is not None
    points = load.run["sold_at"]
    assert CURVE_POINTS / 2 <= len(points) <= CURVE_POINTS
    assert (points[0], points[-1][1]) == ((0.0, 0), 10 * CURVE_POINTS - 1)
    assert points == sorted(points)
