"""Two reports side by side."""

from dataclasses import asdict
from typing import Any

from loadtest.load.plan import Plan
from loadtest.web import comparison


def report(*, stock: int, sold: int, wait: float, verdict: str = "ok", **plan: Any) -> Any:
    run = {
        **{"backend": "redis", "discipline": "naive", "repeat": 1, "expected": "ok", "why": ""},
        **{"stock": stock, "sold": sold, "oversold": 0, "undersold": 0, "verdict": verdict},
        **{"orders_per_second": sold / 2, "wait_ms": {"p50": 1.0, "p95": 2.0, "p99": wait}},
        **{"sold_at": [[0.0, 0], [2.0, sold]], "marks": []},
    }
    settings = asdict(Plan(backends=("redis",), disciplines=("naive",), stock=stock, **plan))
    return {"settings": settings, "versions": {}, "runs": [run]}


A = report(stock=50, sold=50, wait=90.0)
B = report(stock=80, sold=80, wait=60.5, seed=7)


def test_differences_have_signs() -> None:
    (row,) = comparison.rows(A, B)
    assert row["name"] == "Redis + naive"
    assert row["difference"] == {"sold": "+30", "orders_per_second": "+15.0", "p99": "−29.5"}
    (same,) = comparison.rows(A, A)
    assert same["difference"] == {"sold": "+0", "orders_per_second": "+0.0", "p99": "+0.0"}
    (row,) = comparison.rows(A, {**B, "runs": []})
    assert (row["pair"][1], row["difference"]) == (None, {})
    (row,) = comparison.rows(A, report(stock=50, sold=0, wait=0.0, verdict="not-run"))
    assert row["difference"] == {}
    assert comparison.differing_settings(A, B) == [
        ("Stock", "50", "80"),
        ("Random seed", "42", "7"),
    ]
    assert comparison.differing_settings(A, A) == []
    other = {**A, "settings": {**A["settings"], "backends": ["none", "process"]}}
    changed = comparison.differing_settings(
        {**A, "settings": {**A["settings"], "backends": ()}}, other
    )
    assert changed == [("Backends", "", "no lock · process")]
