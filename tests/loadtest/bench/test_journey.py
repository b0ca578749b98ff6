"""`manage.py lab bench journey`: a small run on real servers, its targets and its table."""

from typing import Any

import pytest

from loadtest.bench.benchmark import targets
from loadtest.bench.journey import crowds, pages, report, runner
from loadtest.load.http.client import Replies, Reply
from tests.loadtest.lab import lab

SMALL = {"people": 1, "seconds": 0.0, "buyers": 60, "crowd_seconds": 0.5}
JOURNEY = report.Journey()


@pytest.mark.long
def test_small_run_measures_every_request_and_the_crowds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "SIZES", SMALL)
    found, code = lab("bench", "journey", "--rounds=1", "--part=requests", "--part=crowds")
    assert (found["missing"], code) == ({}, 0)
    lines = {row["line"]: row for row in found["lines"]}
    assert not any(row["wrong"] for row in lines.values())
    assert lines[runner.FLOOR]["queries"] == lines[runner.FLOOR]["redis"] == 0
    assert lines["purchase"]["queries"] > 0
    assert lines["static file"]["times"] > 10
    assert lines[runner.POLL]["times"] >= pages.WATCHED / 60
    once = [row for row in lines.values() if "times" in row]
    whole = sum(row["times"] * row["rounds"][0]["queries"] for row in once)
    assert lines[runner.WITH]["rounds"][0]["queries"] == pytest.approx(whole)
    assert lines[runner.WITHOUT]["rounds"][0]["queries"] < whole
    assert len(found["targets"]) == 25
    assert all(target["met"] is not None for target in found["targets"])
    assert lines[crowds.TABS]["offered"] >= crowds.OPEN_TABS / 60
    assert 0 <= lines[crowds.SIGN_INS]["refused"] <= crowds.CUSTOMERS
    written = JOURNEY.markdown(found)
    assert written.count("|\n") == len(lines) - 4 + len(targets("crowds")) + 4


def test_refused_request_and_slow_pages_of_the_grown_shop_are_reported() -> None:
    rows: list[dict[str, Any]] = [
        {"what": what, "name": name, "ms": ms, "queries": 5}
        for what, name, ms in (
            ("page", "/admin/shop/order/", 2800.0),
            ("job", "shop.tasks.expire_unpaid_orders", 500.0),
            ("service", "audit of the big sale", 90.0),
            ("page", "/ops/", 12.0),
        )
    ]
    line: dict[str, Any] = {"line": "home", "wrong": []}
    found = {"settings": {"parts": ["growth"]}, "missing": {}, "lines": [line]}
    found["growth"] = {"rows": rows, "expiring": 1000}
    assert [target["value"] for target in JOURNEY.targets(found)] == [2800.0, 90.0, 2000.0]
    assert JOURNEY.is_ok(found)
    line["wrong"], rows[0]["status"] = ["busy (503)"], 503
    assert list(JOURNEY.wrong(found)) == ["home: busy (503)", "/admin/shop/order/: 503"]
    assert not JOURNEY.is_ok(found)


def test_page_that_polls_nothing_is_an_error() -> None:
    page = '<p data-poll="5000" hx-get="/live/?layout=a&amp;b=c">'
    assert pages.poll_of(page) == ("/live/?layout=a&b=c", 4.5)
    with pytest.raises(ValueError, match="no poll"):
        pages.poll_of("<p>")


def test_rate_of_a_window_counts_the_purchases_that_ended_in_it() -> None:
    """Those under way at its end count only for the waits."""
    times = ((0.0, 0.5), (0.5, 1.5), (1.5, 2.5), (1.5, 3.5), (1.9, 3.9))
    replies = [Reply("ok", *one) for one in times]
    found = crowds.purchases(Replies(replies, 0.0, 4.0, 0.0), 1.0, 3.0)
    assert found == {"per_second": 1.0, "p50_ms": 1000.0, "p99_ms": 2000.0}


@pytest.mark.parametrize("waits", [(20.0, 0.0), (0.0, 20.0)])
def test_crowd_in_which_no_purchase_succeeds_is_wrong(waits: tuple[float, float]) -> None:
    assert crowds.compared(*waits)["wrong"] == ["no purchase succeeded"]
