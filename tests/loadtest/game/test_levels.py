"""The game on its real servers: every level can be won, and its guard stops that order."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from devservers.faults.waiting import until
from loadtest.game import client
from loadtest.game.levels import LEVELS, LOCKED, STOPS, WITHDRAW
from loadtest.game.record import RECORDED, Recorder
from tests.loadtest.charts.drawn import contradictions
from tests.loadtest.game.places import own_places  # noqa: F401 - a fixture

ORDERS = {
    "race": "A A B B B A",
    "expire": "A A-kill",
    "owner": "A A A A-pause B B A C C B C",
    "fence": "A A A-pause B B B A",
    "commit": "A A A B B B B A",
}
"""An order of steps that wins each level without its guard."""
RECORDING = json.loads(RECORDED.read_text("utf-8"))


@pytest.fixture(scope="module")
def game() -> Iterator[UUID]:
    """A game that ends with the module."""
    one = client.start("race")
    yield one
    client.ask(one, "end")


def run(game: UUID, order: str) -> dict[str, Any]:
    """Run the steps that are possible; the buyer of the others waits, or is over."""
    state = client.ask(game, "state")
    for action in order.split():
        buyer, _, verb = action.partition("-")
        verbs = next(one["verbs"] for one in state["buyers"] if one["name"] == buyer)
        if verbs.get(verb or "step"):
            state = client.ask(game, "act", buyer=buyer, verb=verb or "step", turn=state["turn"])
            assert contradictions(state["events"]) == []
    return state


@pytest.mark.parametrize("guarded", [False, True], ids=["no guard", "guard"])
@pytest.mark.parametrize("level", LEVELS)
def test_level_is_won_without_its_guard_as_recorded(level: str, guarded: bool, game: UUID) -> None:
    """The moves that are possible have the outcomes that the exported course replays."""
    half = RECORDING["levels"][level][guarded]
    texts = {tuple(one): number for number, one in enumerate(RECORDING["sentences"])}
    buyers = {json.dumps(one): number for number, one in enumerate(RECORDING["buyers"])}
    recorder = Recorder(game, level, guarded, texts, buyers)
    state = recorder.settled("begin", **recorder.begin)
    here, told = 0, list[int]()
    for action in ORDERS[level].split():
        buyer, _, verb = action.partition("-")
        move = f"{buyer}-{verb or 'step'}"
        if move in half["moves"][here]:
            here, *more = half["moves"][here][move]
            told += more
            request = {"buyer": buyer, "verb": verb or "step", "turn": state["turn"]}
            state = recorder.settled("act", **request)
            assert recorder.plain(state) == half["states"][here], move
            # A watchdog wakes with its buyer: either of them is the first to notice the loss.
            found = [
                sorted([*texts][one][0].removeprefix("Watchdog of ").lower() for one in numbers)
                for numbers in (recorder.tell(state), told)
            ]
            assert found[0] == found[1], move
            assert contradictions(state["events"]) == []
    assert state["turn"] > 1
    assert state["won"] is not guarded
    assert any(half["moves"][here].values()) is guarded


def test_recording_has_every_move_and_no_way_past_a_guard() -> None:
    for level, halves in RECORDING["levels"].items():
        broken, guarded = (any(state["won"] for state in half["states"]) for half in halves)
        assert (broken, guarded) == (True, False), level
        assert all(half["is_complete"] for half in halves), level


def test_undo_takes_back_one_move(game: UUID) -> None:
    client.ask(game, "begin", level="fence", guarded=True)
    before = run(game, "A A B")
    after = run(game, "A-pause B")
    undone = client.ask(game, "undo", turn=client.ask(game, "undo", turn=after["turn"])["turn"])
    kept = {"buyers", "quantity", "sold", "won", "over", "guarded"}
    assert {name: undone[name] for name in kept} == {name: before[name] for name in kept}
    assert undone["lock"]["owner"] == "A"
    with pytest.raises(client.StepOutdated):  # the same form again
        client.ask(game, "undo", turn=after["turn"])
    client.ask(game, "begin", level="fence", guarded=True)
    with pytest.raises(client.StepOutdated):
        client.ask(game, "undo", turn=0)


def test_waiter_gets_the_lock_of_a_killed_holder_when_its_lease_ends(game: UUID) -> None:
    client.ask(game, "begin", level="expire", guarded=True)
    state = run(game, "A A-kill B")
    assert [buyer["status"] for buyer in state["buyers"]] == ["killed", "runs"]
    until(lambda: client.ask(game, "state")["buyers"][1]["at"] == "read", "B at its read")
    assert not client.ask(game, "state")["won"]


@pytest.mark.parametrize("level", LEVELS)
def test_every_stop_is_a_line_of_the_code_shown(level: str) -> None:
    for variant in (LEVELS[level].broken, LEVELS[level].guarded):
        shown = [one for one in (LOCKED, variant.code, WITHDRAW) if one is not None]
        for stop in (STOPS | variant.stops).values():
            lines = [line for one in shown if one.path == stop.path for line in one.lines()]
            assert any(stop.first in line for line in lines)
