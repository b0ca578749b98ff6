"""`manage.py lab bench journey`: a small run on real servers, its targets and its table."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError

from loadtest.bench import journey
from loadtest.bench.journey import pages, report, runner
from tests.loadtest.lab import lab

SMALL = {"people": 1, "seconds": 0.0, "buyers": 60, "crowd_seconds": 0.5}


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
    for name in runner.COUNTED:
        once = [row for row in lines.values() if "times" in row]
        whole = sum(row["times"] * row["rounds"][0][name] for row in once)
        assert lines[runner.WITH]["rounds"][0][name] == pytest.approx(whole)
        assert lines[runner.WITHOUT]["rounds"][0][name] < whole
    assert len(found["targets"]) == 25
    assert all(target["met"] is not None for target in found["targets"])
    assert lines[journey.TABS]["offered"] >= journey.OPEN_TABS / 60
    assert 0 <= lines[journey.SIGN_INS]["refused"] <= journey.CUSTOMERS
    written = report.markdown(found)
    assert written.count("|\n") == len(lines) - 4 + len(report.CROWDS) + 4
    assert len(report.remarks(found)) == len(report.CROWDS) + 1


def measured(*rounds: dict[str, Any], line: str = "home") -> dict[str, Any]:
    row = report.summary(line, [{"wrong": [], **one} for one in rounds])
    asked = {"parts": ["requests"]}
    return {"lines": [row], "growth": {"rows": []}, "missing": {}, "settings": asked}


def test_ratio_is_the_median_of_the_rounds() -> None:
    found = measured(*({"x": x, "nginx_x": 0.01} for x in (9.0, 0.9, 0.8)))
    values = {name: value for name, value, _sign, _limit in report.limits(found)}
    assert values["home: x /livez"] == 0.9
    assert values["home: behind nginx, x /livez"] == 0.01
    assert values["/learn/: x /livez"] is None


def test_refused_request_and_missing_server_are_unsound() -> None:
    assert report.is_sound(measured({"x": 1.0}))
    assert not report.is_sound(measured({"x": 1.0}, {"x": 1.0, "wrong": ["503"]}))
    assert not report.is_sound(measured({"x": 1.0}) | {"missing": {"redis": "not installed"}})


def test_grown_shop_has_targets_for_its_pages_its_audit_and_its_expiry() -> None:
    rows = [
        {"what": what, "name": name, "ms": ms, "queries": 5}
        for what, name, ms in (
            ("page", "/admin/shop/order/", 2800.0),
            ("page", "/ops/", 12.0),
            ("job", "shop.tasks.expire_unpaid_orders", 500.0),
            ("service", "audit of the big sale", 90.0),
        )
    ]
    found = measured({"x": 1.0}) | {"growth": {"rows": rows, "expiring": 1000}}
    values = [value for name, value, _sign, _limit in report.limits(found) if "grown" in name]
    assert values == [2800.0, 90.0, 2000.0]
    assert report.is_sound(found)
    rows[0]["status"] = 503
    assert not report.is_sound(found)


@pytest.mark.parametrize("option", ["--rounds=0", "--people=200", "--seconds=2"])
def test_bad_options_are_refused(option: str) -> None:
    with pytest.raises(CommandError, match=option.strip("-").partition("=")[0]):
        lab("bench", "journey", option)


def test_page_that_polls_nothing_is_an_error() -> None:
    page = '<p data-poll="5000" hx-get="/live/?layout=a&amp;b=c">'
    assert pages.poll_of(page) == ("/live/?layout=a&b=c", 4.5)
    with pytest.raises(ValueError, match="no poll"):
        pages.poll_of("<p>")
