"""`manage.py lab bench keys`."""

import pytest

from loadtest.bench import keys

LINES = ("alone", "crowd")


def test_small_round_on_real_servers():
    report = keys.bench({"rounds": 1, "buyers": 60}, lambda _: None)
    counted = {row["line"]: row["rounds"][0] for row in report["lines"]}
    one = counted.pop("one form")
    assert (one["sent"], one["answers"], one["orders"]) == (keys.SENDS, 1, 1)
    assert counted.keys() == {
        f"{how}, {variant}" for how in LINES for variant in ("with", "without")
    }
    for row in counted.values():
        assert row["sent"] == row["answers"] == row["orders"]
        assert row["ms"] > 0
    assert keys.is_sound(report)
    headings, rows = keys.table(report)
    assert len(headings) == len(next(iter(rows)))
    assert "python" in keys.remarks(report)[0]


@pytest.mark.parametrize(
    ("line", "change", "is_sound"),
    [
        ("one form", {"orders": 2}, False),
        ("one form", {"answers": 2}, False),
        ("crowd, with", {"orders": 999}, False),
        ("crowd, without", {"breaches": ["one unit too many"]}, False),
        ("alone, with", {"ms": 9.0}, True),
    ],
)
def test_wrong_counts_and_breaches_are_unsound(line, change, is_sound):
    row = {"sent": 1000, "answers": 1000, "orders": 1000, "breaches": [], "ms": 1.0}
    names = [f"{how}, {variant}" for how in LINES for variant in ("with", "without")]
    measured = {name: [dict(row)] for name in names}
    measured["one form"] = [{**row, "answers": 1, "orders": 1}]
    measured[line][0] |= change
    report = {
        "missing": {},
        "lines": [{"line": name, "ms": 1, "rounds": done} for name, done in measured.items()],
        "targets": list(keys.targets(measured)),
    }
    assert keys.is_sound(report) is is_sound
    slow = [target["met"] for target in report["targets"] if "added" in target]
    assert slow == [line != "alone, with", True]
