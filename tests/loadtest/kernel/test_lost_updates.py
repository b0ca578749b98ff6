"""Lost updates in handwritten histories."""

from typing import Any

import pytest

from loadtest.kernel.history import SECOND
from loadtest.kernel.lost_updates import lost_updates
from tests.loadtest.lab import check_sum


def told(script: str) -> list[dict[str, Any]]:
    """Return a history; "p1r37" is a read of 37 in thread 1 of the process p, "p1w36" a write."""
    return [
        {
            **{"t": at, "actor": word[0], "thread": word[1], "type": "ok"},
            "do": {"r": "read", "w": "write"}[word[2]],
            "quantity": int(word[3:]) if word[3:] else None,
        }
        for at, word in enumerate(script.split())
    ]


@pytest.mark.parametrize(
    ("script", "times"),
    [
        ("p1r37 p2r37 p1w36 p2w36 p1r36 p1w35", 1),
        # At p2w8 and p3w7, even if nobody else read what p3 had; a read that is older is no matter.
        ("p1r9 p2r9 p1w8 p2w8 p3r8 p1r8 p1w7 p2r6 p4r7 p4w6 p2w5 p3w7", 2),
        ("p1r5 q1r5 p1w4 q1w4", 1),  # threads of two processes
        ("p1r9 p1w6 p1r6 p2r5 p1w5 p2w4", 0),  # a write is recorded after the next read
        ("p1r p1w p2w", 0),  # a conditional write has read nothing
        ("", 0),
    ],
)
def test_lost_updates(script: str, times: int) -> None:
    found = lost_updates(told(script), units=3, counted=2)
    assert (found["times"] if found else 0) == times
    if found:
        steps = [(one["actor"], one["do"]) for one in found["events"]]
        a, b = "buyer A", "buyer B"
        own = [step for step in steps if step[0] != "other buyers"]
        assert own == [(a, "read"), (b, "read"), (a, "write"), (b, "write")]


@pytest.mark.parametrize(("first", "second"), [(36, 36), (36, 34), (30, 36)])
def test_sum_of_an_oversold_run_adds_up(first: int, second: int) -> None:
    """Also if a buyer wrote for several, as the leader of a group does."""
    events, sold = told(f"a1r37 b1r37 a1w{first} b1w{second}"), 74 - first - second
    found = lost_updates(events, units=sold, counted=37 - second)
    assert "In this run" in check_sum({"sold": sold, "lost_updates": found})


@pytest.mark.parametrize(
    ("marks", "word"), [([], "after its read"), ([(0.1, "pause-holder")], "paused")]
)
def test_late_write_puts_sold_units_back(marks: list[tuple[float, str]], word: str) -> None:
    """Others sold until the row said 1, which B's write from a stock of 4 undid."""
    events = told("a1r4 b1r4 a1w3 c1r3 c1w2 d1r2 d1w1 b1w3")
    for event in events:
        event["t"] *= SECOND
    found = lost_updates(events, units=4, counted=1)
    assert found
    assert found["seconds"] == 6.0
    others = [
        (one["do"], one["quantity"]) for one in found["events"] if one["actor"] == "other buyers"
    ]
    assert others == [("read", 3), ("write", 1)]
    run = {"sold": 4, "lost_updates": found, "backend": "redis", "marks": marks}
    assert word in check_sum(run)
    assert "this sale raised the stock by 2" in check_sum(run)


def test_second_late_write_takes_units_out_again() -> None:
    """B's write puts 3 sold units back into the stock; E's, computed before it, takes 2 out."""
    events = told("a1r4 b1r4 a1w3 c1r3 c1w2 d1r2 d1w1 e1r1 b1w3 e1w0")
    found = lost_updates(events, units=5, counted=4)
    text = check_sum({"sold": 5, "lost_updates": found, "backend": "redis"})
    assert "2 were computed" in text
    assert "1 was not counted" in text
