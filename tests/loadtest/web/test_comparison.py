"""Two reports side by side."""

from typing import Any

from loadtest.load.plan import Plan
from loadtest.web import comparison
from tests.loadtest.charts.test_export import load_test


def report(*, stock: int, sold: int, wait: float, verdict: str = "ok", **plan: Any) -> Any:
    found = load_test(Plan(backends=("redis",), disciplines=("naive",), stock=stock, **plan))
    (run,) = found["runs"]
    run |= {"stock": stock, "sold": sold, "verdict": verdict, "orders_per_second": sold / 2}
    run["wait_ms"]["p99"] = wait
    return found


A = report(stock=50, sold=50, wait=90.0)
B = report(stock=2080, sold=2080, wait=60.5, seed=7)


def test_differences_have_signs() -> None:
    (row,) = comparison.rows(A, B)
    assert row["name"] == "Redis", "as on the page of each result"
    assert row["difference"] == {
        "sold": ("+2,030", False),
        "orders_per_second": ("+1,015.0", False),
        "p99": ("−30", False),
    }
    (same,) = comparison.rows(A, A)
    assert [text for text, _ in same["difference"].values()] == ["0", "0.0", "0"]
    (row,) = comparison.rows(A, {**B, "runs": []})
    assert (row["pair"][1], row["difference"]) == (None, {})
    (row,) = comparison.rows(A, report(stock=50, sold=0, wait=0.0, verdict="not-run"))
    assert row["difference"] == {}
    assert comparison.differing_settings(A, B) == [
        ("Stock", "50", "2,080"),
        ("Random seed", "42", "7"),
    ]
    assert comparison.differing_settings(A, A) == []
    other = {**A, "settings": {**A["settings"], "backends": ["none", "process"]}}
    changed = comparison.differing_settings(
        {**A, "settings": {**A["settings"], "backends": ()}}, other
    )
    assert changed == [("Backends", "", "no lock · process")]
    hit = [{"name": "pause-holder", "at": 0.6, "proof": ""}, {"name": "kill-redis", "at": None}]
    by_hand = {**A, "runs": [{**A["runs"][0], "faults": hit}]}
    assert comparison.differing_settings(A, by_hand) == [
        ("Injected faults", "", "Redis: Pause the holder × 1"),
    ]


def test_medians_are_compared_and_a_difference_within_the_spread_may_be_chance() -> None:
    def runs(*waits: float) -> Any:
        found = [report(stock=50, sold=50, wait=wait) for wait in waits]
        return {**found[0], "runs": [one["runs"][0] for one in found]}

    (row,) = comparison.rows(runs(10, 20, 90), runs(30, 50, 60))
    assert row["pair"][0]["p99"] == ("20", "(10–90)")
    assert row["difference"]["p99"] == ("+30", True)
    (row,) = comparison.rows(runs(10, 20, 25), runs(30, 50, 60))
    assert row["difference"]["p99"] == ("+30", False)
