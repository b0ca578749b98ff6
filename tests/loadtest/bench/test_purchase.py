"""`manage.py lab bench purchase`: a short run, and what its ledgers and its page say."""

from functools import partial
from io import StringIO

import pytest
from django.utils import timezone

from loadtest.bench.purchase import measure, report, runner
from loadtest.kernel.terminal import Terminal
from loadtest.management.commands.lab import Command
from shop.models import Order, User
from tests.loadtest.lab import lab

PURCHASE = report.Purchase()


@pytest.mark.django_db
@pytest.mark.parametrize("line", [runner.EMBEDDED, runner.REFERENCE])
def test_order_without_ledger_entry_is_a_breach(line):
    buyer = User.objects.create(username="buyer")
    sale = runner.sale_of(line, 1, [buyer, buyer, buyer])
    found = partial(measure.breaches, sale, 0, keeps_ledger=line.keeps_ledger)
    assert list(found()) == []
    Order.objects.create(
        customer=buyer, sale=sale, quantity=1, unit_price=1, key="x", pay_by=timezone.now()
    )
    broken = " ".join(found())
    assert "3 initial ≠ 3 available + 1 held" in broken
    assert "1 orders, 0 acknowledged" in broken
    told = {"lines": [{"line": "direct", "breaches": [broken], "per_second": 1}], "missing": {}}
    assert not PURCHASE.is_ok(told)
    assert list(PURCHASE.wrong(told)) == [f"direct: {broken}"]


def test_line_of_which_nothing_succeeded_is_wrong() -> None:
    """Its p99 of 0 ms would meet every target."""
    line = {"line": "direct", "breaches": [], "per_second": 0.0, "answers": {"busy": 900}}
    assert [*PURCHASE.wrong({"lines": [line]})] == ["direct: only 900 busy"]


def test_table_for_people_names_the_versions_of_each_store():
    versions = {"mariadb": {"python": "3.13.1", "cores": 2}}
    found = {"settings": {"burst": 1}, "lines": [], "targets": [], "missing": {}}
    PURCHASE.describe(Terminal(Command(stdout=(out := StringIO()))), found | {"versions": versions})
    assert "mariadb: python 3.13.1, cores 2\n" in out.getvalue()


@pytest.mark.long
def test_short_benchmark():
    options = ["--rounds=1", "--seconds=0.5", "--buyers=60", "--attempts=400"]
    found, code = lab("bench", "purchase", *options, "--burst=20", "--offered=25")
    lines = {line["line"]: line for line in found["lines"]}
    assert (len(lines), code) == (14, 0)
    assert not any(line["breaches"] for line in lines.values())
    assert set(lines["reference"]["answers"]) == {"ok"}
    for name in ("direct", "direct, PostgreSQL"):
        assert lines[name]["answers"]["ok"] > 0
    assert set(lines["sold out"]["answers"]) == {"sold_out"}
    assert set(lines["empty view"]["answers"]) == {"ok"}
    assert set(lines["queued"]["answers"]) == {"ok"}
    assert lines["queued"]["server"] == "gunicorn gthread 2 x 8"
    for how in ("naive", "fenced", "conditional", "queued"):
        (done,) = lines[f"attempts, {how}"]["rounds"]
        assert (done["orders"], sum(done["answers"].values())) == (4, 400)
    written = lines[report.SEEN]
    assert written["answers"]["seen"] > 0
    assert written["per_second"] > 25, "the buyers who were prepared do not bound the rate"
    assert lines["SQLite"]["store"] == "sqlite"
    assert all(target["met"] is not None for target in found["targets"])
    assert "s, all buyers had sent their form." in PURCHASE.markdown(found)
