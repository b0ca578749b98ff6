"""`manage.py verify soak` for some seconds, and what counts as growth."""

import pytest
from django.core.management import CommandError

from tests.loadtest.lab import verify
from verification import soak
from verification.soak import BACKENDS, Figures, growth


@pytest.mark.long
def test_soak_leaves_consistent_ledger_and_no_held_locks() -> None:
    """In such a short soak most figures still grow, so growth is ignored."""
    report, _ = verify("soak", "--seconds=12")
    assert not [one for one in report["breaches"] if " grew to " not in one]
    assert {*report["in_force"]} == {*BACKENDS}
    assert {"buy 201", "queue 202", "look 200"} <= report["answers"].keys()


def samples(*values: float, name: str = "web: kb") -> list[Figures]:
    return [{name: value} for value in values]


@pytest.mark.parametrize(
    ("name", "first", "last", "leaks"),
    [
        ("web: kb", [1000, 1000, 9000], [1049, 1049, 1049], False),
        ("web: kb", [1000, 1000, 1000], [1051, 1051, 9], True),
        ("web: threads", [10, 10], [10, 13], False),
        ("web: threads", [10, 10, 10], [10, 14, 14], True),
        ("rows: shop_sale", [2], [6], True),
        ("rows: shop_order", [2], [600], False),
    ],
)
def test_growth_beyond_the_limits_is_a_breach(
    name: str, first: list[float], last: list[float], leaks: bool
) -> None:
    breaches, figures = growth(samples(*first, name=name), samples(*last, name=name))
    assert bool(breaches) is leaks
    assert figures[name]["to"] == (1051 if leaks and "kb" in name else figures[name]["to"])


def test_lock_that_stays_held_is_a_breach_and_keeps_the_report(monkeypatch) -> None:
    monkeypatch.setattr(soak, "TIMEOUT", 0.1)
    monkeypatch.setattr(soak, "locks_held", lambda zookeeper: 2)
    assert soak.leaks_in(0) == ["2 locks are held or waited for, and no visitor is left"]


def test_replaced_process_is_a_breach() -> None:
    assert growth(samples(1, name="web: pid"), samples(2, name="web: pid"))[0]
    assert not growth(samples(1, name="web: pid"), samples(1, name="web: pid"))[0]


def test_arguments_outside_the_limits_are_refused() -> None:
    with pytest.raises(CommandError, match="must be between"):
        verify("soak", "--seconds=1")
