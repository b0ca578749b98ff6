"""The progress of a load test: buyers served, and the curve of the run under way."""

from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.load.progress import CURVE_POINTS, LoadProgress

NAMES = {"backend": "none", "discipline": "naive", "repeat": 1}


def progress(*events: dict[str, Any], runs: int = 2) -> LoadProgress:
    load = LoadProgress()
    load.update({"event": "plan", "buyers": 20, "runs": runs, "stock": 5})
    for event in events:
        assert load.update(event)
    return load


def moment(at: float, served: int, sold: int, **names: Any) -> dict[str, Any]:
    figures = {"at": at, "served": served, "sold": sold, "marks": [], "requested": "none"}
    return {"event": "progress", **NAMES, **figures, **names}


def ended(sold: int, verdict: str = "oversold") -> dict[str, Any]:
    curve = {"sold_at": [(0.0, 0), (1, sold)], "marks": [], "lost_updates": None}
    figures = {"stock": 5, "sold": sold, "oversold": max(0, sold - 5)}
    return {"event": "run", "run": {**NAMES, **figures, **curve, "verdict": verdict, "why": ""}}


def test_progress_follows_the_run_under_way() -> None:
    load = progress(moment(0.1, 2, 2), moment(0.2, 9, 7))
    now = load.as_dict()
    assert (now["done"], now["of"], now["now"]) == (9, 40, "none + naive #1")
    run = now["run"]
    assert run["sold_at"] == [(0.0, 0), (0.1, 2), (0.2, 7)]
    assert (run["sold"], run["oversold"], run["buyers"]) == (7, 2, 20)
    load.update(ended(8))
    assert (load.done, load.run) == (20, None)
    load.update(moment(0.1, 1, 1, backend="redis"))
    assert (load.done, load.as_dict()["run"]["sold_at"]) == (21, [(0.0, 0), (0.1, 1)])


def test_runs_that_did_not_take_place_served_no_buyer(monkeypatch: pytest.MonkeyPatch) -> None:
    """They count as done, and the rate is that of the others."""
    times = iter((10.0, 12.0))
    monkeypatch.setattr("loadtest.load.progress.time", SimpleNamespace(monotonic=times.__next__))
    events = ended(0, "not-run"), moment(0.1, 1, 1), moment(2.1, 8, 5)
    found = progress(*events, runs=4).as_dict()
    assert (found["done"], found["of"], found["per_second"], found["left"]) == (28, 80, 4, 13)


def test_long_curve_is_thinned_out_but_keeps_its_ends() -> None:
    load = progress(*(moment(n / 10, n, n) for n in range(1, 10 * CURVE_POINTS)))
    assert load.run is not None
    points = load.run["sold_at"]
    assert CURVE_POINTS / 2 <= len(points) <= CURVE_POINTS
    assert (points[0], points[-1][1]) == ((0.0, 0), 10 * CURVE_POINTS - 1)
    assert points == sorted(points)
