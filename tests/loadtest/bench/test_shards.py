"""`manage.py lab bench shards`."""

import pytest

from loadtest.bench import shards


def test_small_round_on_real_servers():
    report = shards.bench({"rounds": 1, "reservations": 400}, lambda _: None)
    assert [row["servers"] for row in report["lines"]] == ["1", "2", "4"]
    one, two, four = (row["cpu_us"] for row in report["lines"])
    assert one > two > four > 0, "each server has a part of the reservations"
    assert shards.is_sound(report)
    headings, rows = shards.table(report)
    assert len(headings) == len(next(iter(rows)))
    assert len(report["targets"]) == len(shards.LIMITS)


@pytest.mark.parametrize("breaches", [[], ["399 of 400 units left"]])
def test_units_that_are_missing_are_unsound(breaches):
    report = {"missing": {}, "lines": [{"rounds": [{"breaches": breaches}]}]}
    assert shards.is_sound(report) is (not breaches)
