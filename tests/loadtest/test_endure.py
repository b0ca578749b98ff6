"""`lab endure`: a shop that is restarted under load, and a soak, on a small scale."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from loadtest.load.http_client import HUNG_UP
from loadtest.resilience.soak import BACKENDS, Figures, growth


def endure(*words: str) -> dict[str, Any]:
    out = io.StringIO()
    with suppress(SystemExit):  # 1, when the verdict is not ok
        call_command("lab", "endure", *words, "--json", stdout=out)
    report: dict[str, Any] = json.loads(out.getvalue())
    return report


@pytest.mark.long
def test_restarts_lose_nothing() -> None:
    # A restart takes 4 s: the rush must not be over before the second.
    report = endure("restarts", "--attempts=20000", "--stock=200")
    assert report["verdict"] == "ok", report["breaches"]
    assert (report["orders"], report["restarts"]) == (200, 2)
    assert report["answers"][HUNG_UP]["count"] > 0
    assert report["jobs"]["turned_away"] > 0


@pytest.mark.long
def test_a_soak_leaves_nothing_held_and_no_books_wrong() -> None:
    """So short, nothing has settled: what still grows is no news."""
    report = endure("soak", "--seconds=12")
    assert not [one for one in report["breaches"] if " grew to " not in one]
    assert {*report["in_force"]} == {*BACKENDS}
    assert {"buy 201", "queue 202", "look 200"} <= report["answers"].keys()


def of(*values: float, name: str = "web: kb") -> list[Figures]:
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
def test_what_counts_as_growth(
    name: str, first: list[float], last: list[float], leaks: bool
) -> None:
    breaches, figures = growth(of(*first, name=name), of(*last, name=name))
    assert bool(breaches) is leaks
    assert figures[name]["to"] == (1051 if leaks and "kb" in name else figures[name]["to"])


def test_a_process_that_was_replaced() -> None:
    assert growth(of(1, name="web: pid"), of(2, name="web: pid"))[0]
    assert not growth(of(1, name="web: pid"), of(1, name="web: pid"))[0]


@pytest.mark.parametrize("words", [["--seconds=1", "soak"], ["--attempts=0", "restarts"]])
def test_bad_arguments(words: list[str]) -> None:
    with pytest.raises(CommandError, match="is not within"):
        endure(*words)
