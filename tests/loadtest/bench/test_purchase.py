"""`manage.py lab bench purchase`: its targets, and a short run."""

import io
import json

import pytest
from django.core.management import call_command
from django.utils import timezone

from loadtest.bench.purchase import report, runner
from shop.models import Order, User


def measured_rounds(*rates):
    one = {"p99_ms": 10.0, "queries": 0.0, "redis_trips": 1.0, "answers": {}, "breaches": []}
    return [one | {"per_second": rate} for rate in rates]


@pytest.mark.parametrize(("rates", "met"), [((500, 250, 400), True), ((240, 500, 90), False)])
def test_ratio_is_the_median_of_the_rounds(rates, met):
    measured = {"direct": measured_rounds(*rates), "reference": measured_rounds(100, 50, 100)}
    found = {target["target"]: target["met"] for target in report.targets(measured)}
    assert found["direct: x reference >= 4.5"] is met
    assert found["SQLite: p99 ms <= 250"] is None


def test_breaches_and_missing_stores_are_reported():
    line = {"line": "direct", "breaches": ["oversold: 3 promised of 2"]}
    broken = {"lines": [line], "missing": {"redis": "not there"}, "versions": {}}
    assert report.remarks(broken) == [
        "direct: oversold: 3 promised of 2",
        "redis: not there",
    ]
    assert not report.is_sound({"lines": [line], "missing": {}})
    assert not report.is_sound({"lines": [], "missing": {"redis": "not there"}})


@pytest.mark.django_db
@pytest.mark.parametrize("line", [runner.EMBEDDED, runner.REFERENCE])
def test_order_without_ledger_entry_is_a_breach(line):
    buyer = User.objects.create(username="buyer")
    sale = runner.sale_of(line, 1, [buyer, buyer, buyer])
    assert list(runner.breaches(line, sale, 0)) == []
    Order.objects.create(
        customer=buyer, sale=sale, quantity=1, unit_price=1, key="x", pay_by=timezone.now()
    )
    broken = " ".join(runner.breaches(line, sale, 0))
    assert "3 initial != 3 available + 1 held" in broken
    assert "1 orders, 0 acknowledged" in broken


def test_short_benchmark():
    out = io.StringIO()
    options = ["--rounds=1", "--seconds=0.5", "--buyers=60", "--attempts=400"]
    options += ["--burst=20", "--offered=25"]
    call_command("lab", "bench", "purchase", *options, "--json", stdout=out)
    found = json.loads(out.getvalue())
    lines = {line["line"]: line for line in found["lines"]}
    assert len(lines) == 16
    assert not any(line["breaches"] for line in lines.values())
    assert set(lines["reference"]["answers"]) == {"ok"}
    for name in ("direct", "direct, no token", "queued, no token"):
        assert lines[name]["answers"]["ok"] > 0
    assert set(lines["sold out"]["answers"]) == {"sold_out"}
    assert set(lines["empty view"]["answers"]) == {"ok"}
    assert set(lines["queued"]["answers"]) == {"ok"}
    assert lines["queued"]["server"] == "gunicorn gthread 2 x 8"
    for how in ("naive", "fenced", "conditional", "queued"):
        (done,) = lines[f"attempts, {how}"]["rounds"]
        assert (done["orders"], done["pieces"], sum(done["answers"].values())) == (4, 4, 400)
    written = lines["queued, orders written and seen"]
    assert written["answers"]["seen"] > 0
    assert written["per_second"] > 25, "the buyers who were prepared do not bound the rate"
    assert "s, all buyers had sent their form." in report.remarks(found)[-1]
    assert lines["SQLite"]["store"] == "sqlite"
    assert lines["direct, PostgreSQL"]["answers"]["ok"] > 0
    assert all(target["met"] is not None for target in found["targets"])


def test_markdown_has_the_capacity_of_more_machines_and_tells_of_short_loads():
    line = {"to_reference": 1.0, "p99_ms": 1.0, "per_second": 7.0, "redis_cpu_us": 50.0}
    lines = [
        {**line, "line": name, "worker_cpu_ms": cpu}
        for name, cpu in (("direct", 1.0), ("queued", 0.8), ("sold out", 0.5))
    ]
    rounds = [{"load_seconds": seconds} for seconds in (30.01, 12.5)]
    lines.append({**line, "line": report.SEEN, "worker_cpu_ms": 1.0, "rounds": rounds})
    asked = {"rounds": 3, "burst": 30.0, "offered": 2500}
    found = {"lines": lines, "settings": asked, "versions": {"mariadb": {"cores": 2}}}
    written = report.markdown(found)
    assert "seen: after 12.5 of 30 s, all buyers had sent their form." in written
    assert "| direct | 7 | 1.00 | 1.0 | 1.00 | 50 |" in written
    assert "| queued | 25,000 | 250,000 | 2,500,000 | 20,000 |" in written
    assert "| sold out | 40,000 | 400,000 | 4,000,000 | 20,000 |" in written
