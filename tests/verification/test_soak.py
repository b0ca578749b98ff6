"""`manage.py verify soak` for some seconds, and what counts as growth."""

import pytest

from tests.loadtest.lab import verify
from verification import soak
from verification.soak import BACKENDS, growth


@pytest.mark.long
def test_soak_leaves_consistent_ledger_and_no_held_locks() -> None:
    """In such a short soak most figures still grow, so growth is ignored."""
    report, _ = verify("soak", "--seconds=12")
    assert not [one for one in report["breaches"] if " grew to " not in one]
    assert {*report["in_force"]} == {*BACKENDS}
    assert {"buy 201", "queue 202", "look 200"} <= report["answers"].keys()


@pytest.mark.parametrize(
    ("name", "first", "last", "leaks"),
    [
        ("web: kb", [1000, 1000, 9000], [1049, 1049, 1049], False),
        ("web: kb", [1000, 1000, 1000], [1051, 1051, 9], True),
        ("web: threads", [10, 10], [10, 13], False),
        ("web: threads", [10, 10, 10], [10, 14, 14], True),
        ("rows: shop_sale", [2], [6], True),
        ("rows: shop_order", [2], [600], False),
        ("web: pid", [1], [1], False),
        ("web: pid", [1], [2], True),
    ],
)
def test_growth_beyond_the_limits_and_a_new_process_are_breaches(
    name: str, first: list[float], last: list[float], leaks: bool
) -> None:
    breaches, _figures = growth([{name: one} for one in first], [{name: one} for one in last])
    assert bool(breaches) is leaks


def test_lock_that_stays_held_is_a_breach_and_keeps_the_report(monkeypatch) -> None:
    monkeypatch.setattr(soak, "TIMEOUT", 0.1)
    monkeypatch.setattr(soak, "locks_held", lambda zookeeper: 2)
    assert soak.leaks_in(0) == ["2 locks are held or waited for, and no visitor is left"]
