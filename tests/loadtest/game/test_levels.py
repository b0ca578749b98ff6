"""The levels on real servers: each can be won, and its guard stops that order."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from loadtest.game.levels import LEVELS, LOCKED, RECORDED, STOPS, WITHDRAW, recorded
from loadtest.game.record import play

ORDERS: dict[str, str | None] = {
    "race": "A-step A-step B-step B-step B-step A-step",
    "expire": "A-step A-kill",
    "owner": "A-step A-step A-step A-pause B-step B-step A-step C-step C-step B-step C-step",
    "fence": "A-step A-step A-pause B-step B-step B-step A-step",
    "commit": "A-step A-step A-step B-step B-step B-step A-step A-step B-step",
}
"""An order of moves that wins each level without its guard."""
RECORDING = json.loads(RECORDED.read_text("utf-8"))
Outcome = tuple[str, dict[str, Any], list[str]]


@pytest.fixture(scope="module")
def played() -> dict[str, Any]:
    """A recording of the orders."""
    *_others, last = play(ORDERS)
    found: dict[str, Any] = last["report"]
    return found


def outcomes(recording: dict[str, Any], level: str, guarded: bool) -> Iterator[Outcome]:
    """Yield each move of the order that is possible, its state, and what was told by then."""
    half, here, told = recording["levels"][level][guarded], 0, list[int]()
    for move in (ORDERS[level] or "").split():
        if move in half["moves"][here]:
            here, *more = half["moves"][here][move]
            told += more
            state = half["states"][here]
            buyers = [recording["buyers"][number] for number in state["buyers"]]
            # A watchdog wakes with its buyer: either of them is the first to notice the loss.
            said = [
                recording["sentences"][number][0].removeprefix("The watchdog of ")
                for number in told
            ]
            if any("learns from its release" in one for one in said):  # or its watchdog, before
                said = [one for one in said if "notices that the lock is lost" not in one]
            yield move, state | {"buyers": buyers}, sorted(map(str.lower, said))


@pytest.mark.parametrize("guarded", [False, True], ids=["no guard", "guard"])
@pytest.mark.parametrize("level", LEVELS)
def test_level_is_won_without_its_guard_as_recorded(
    level: str, guarded: bool, played: dict[str, Any]
) -> None:
    """The moves that are possible have the outcomes that the page replays."""
    found = list(outcomes(played, level, guarded))
    assert found == list(outcomes(RECORDING, level, guarded))
    assert len(found) > 1
    assert found[-1][1]["won"] is not guarded


def test_recording_has_every_move_and_no_way_past_a_guard() -> None:
    for level, halves in RECORDING["levels"].items():
        broken, guarded = (any(state["won"] for state in half["states"]) for half in halves)
        assert (broken, guarded) == (True, False), level
        assert all(half["is_complete"] for half in halves), level
    for variant in (half for level in LEVELS for half in recorded(level)):
        for state, moves in zip(variant["states"], variant["moves"], strict=True):
            buyers = {one["name"]: one["verbs"] for one in state["buyers"]}
            possible = {
                f"{who}-{verb}" for who in buyers for verb, can in buyers[who].items() if can
            }
            assert possible == moves.keys()


@pytest.mark.parametrize("level", LEVELS)
def test_every_stop_is_a_line_of_the_code_shown(level: str) -> None:
    for variant in (LEVELS[level].broken, LEVELS[level].guarded):
        shown = [one for one in (LOCKED, variant.code, WITHDRAW) if one is not None]
        for stop in (STOPS | variant.stops).values():
            lines = [line for one in shown if one.path == stop.path for line in one.lines()]
            assert any(stop.first in line for line in lines)
