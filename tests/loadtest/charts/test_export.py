"""Files of results: previews for links, CSV of events, and an offline page of bounded size."""

import csv
import io
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import pytest
from django.utils import translation

from inventory.models import WriteStrategy
from loadtest.charts import curves, export
from loadtest.load.plan import NEEDS, Plan
from loadtest.load.verdict import CURVE_POINTS
from loadtest.scenarios import export as scenario_export
from loadtest.scenarios.export import recorded
from shop.sales.guards import LOCKS
from tests.loadtest.charts.drawn import SVG, parse

MOST_BYTES = 300 * 1024


def load_test(plan: Plan) -> dict[str, Any]:
    """Return a report in which every run oversold, contradicts its promise and explains why."""
    curve = [[0.0, 0], *([n / 10, 1000 * n] for n in range(1, 2 * CURVE_POINTS))]
    lost = next(
        variant["events"]
        for variant in recorded()["results"]["holder-paused"]["halves"]
        if variant["facts"]["broke"]
    )
    reads = [{**one, "quantity": 7} for one in lost if one["do"] in ("read", "write")]
    runs = [
        {
            **{"backend": backend, "discipline": discipline, "repeat": repeat},
            **{"expected": "ok", "verdict": "oversold", "why": "units appeared; " * 5},
            **{"stock": 50, "attempts": 200, "sold": 120_000, "oversold": 119_950},
            **{"undersold": 0, "orders_per_second": 12.5, "sold_at": curve, "marks": []},
            "wait_ms": {"p50": 1000.5, "p95": 2000.5, "p99": 30_000.5},
            "lost_updates": {"events": reads, "units": 120_000, "counted": 10, "seconds": 0.0},
        }
        for repeat, discipline, backend in product(
            range(1, plan.repeats + 1), plan.disciplines, plan.backends
        )
    ]
    return {"settings": asdict(plan), "versions": {"python": "3.11"}, "runs": runs}


@pytest.mark.parametrize(("stock", "sold"), [(50, 51), (400, 401), (50, 200)])
def test_curve_visibly_rises_above_the_line_of_the_stock(stock: int, sold: int) -> None:
    run = {**load_test(Plan(backends=("none",)))["runs"][0], "stock": stock, "sold": sold}
    run |= {"oversold": sold - stock, "sold_at": [[0.0, 0], [1.0, stock], [2.0, sold]]}
    drawn = parse(curves.sold_over_time([run]))
    points = next(drawn.iter(f"{SVG}polyline")).get("points", "").split()
    line = next(one for one in drawn.iter(f"{SVG}line") if one.get("stroke-dasharray") == "5 4")
    assert float(line.get("y1", 0)) - float(points[-1].partition(",")[2]) >= 10
    assert float(points[-1].partition(",")[2]) >= 14, "inside the chart"


def test_names_of_faults_are_above_the_line_of_the_stock() -> None:
    run = {**load_test(Plan(backends=("redis",)))["runs"][0], "stock": 50, "sold": 50}
    run |= {"sold_at": [[0.0, 0], [9.0, 50]], "marks": [[1.0, "pause-holder"], [1.9, "resumed"]]}
    drawn = parse(curves.sold_over_time([run]))
    line = next(one for one in drawn.iter(f"{SVG}line") if one.get("stroke-dasharray") == "5 4")
    (end,) = [one for one in drawn.iter(f"{SVG}text") if one.text == "resumed"]
    assert float(end.get("y", 0)) <= float(line.get("y1", 0)) - 4


def test_mark_of_a_fault_has_the_colour_of_its_line() -> None:
    runs = load_test(Plan(backends=("none", "redis")))["runs"]
    for at, run in enumerate(runs, 1):
        run["marks"] = [[float(at), "kill-redis"]]
    drawn = [*parse(curves.sold_over_time(runs)).iter()]
    lines = [one.get("stroke") for one in drawn if one.tag == f"{SVG}polyline"]
    marks = [one.get("stroke") for one in drawn if one.get("stroke-dasharray") == "2 2"]
    assert marks == lines
    assert len({*lines}) == 2


def test_bar_of_a_guard_that_did_not_run_says_so() -> None:
    """Nothing was sold, but not because of the guard."""
    plan = Plan(backends=("none", "redis"))
    control, absent = load_test(plan)["runs"]
    absent |= {"verdict": "not-run", "why": "no server", "sold": 0, "oversold": 0, "sold_at": []}
    texts = [one.text for one in parse(curves.bars([control, absent])).iter(f"{SVG}text")]
    assert texts == ["no lock: sold 120,000, stock 50, 119,950 too many", "Redis: not run"]


LARGEST = Plan(
    backends=tuple(one for one in LOCKS if NEEDS.get(one, "mariadb") == "mariadb"),
    disciplines=tuple(WriteStrategy.values),
    store="mariadb",
    repeats=100,
)


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_offline_page_of_the_largest_load_test_has_at_most_300_kb(language: str) -> None:
    """Its table has the worst run of each guard, and says so; the CSV file has all of them."""
    report = load_test(LARGEST)
    assert len(report["runs"]) == 7 * 3 * 100
    with translation.override(language):
        page = export.as_file(report, "html")
    assert len(page) <= MOST_BYTES
    assert b"<script src" not in page
    if language == "en":
        assert b"the CSV file also has the other 2079 runs" in page.replace(b",", b"")
    assert export.as_file(report, "csv").count(b"\n") == 2101
    few = export.shown(load_test(replace(LARGEST, repeats=4)))
    assert (len(few["lines"]), few["unlisted"]) == (84, 0)


def test_csv_of_events_has_both_variants() -> None:
    result = recorded()["results"]["holder-paused"]
    with translation.override("en"):
        text = scenario_export.as_file({"scenarios": [result]}, "csv").decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["guard"] for row in rows} == {"Redis + naive", "Redis + fenced"}
    assert rows[0]["what"] == "Buyer A asks for the lock."
