"""The game on its real servers: every level can be won, and its guard stops that order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from devservers.faults.waiting import until
from loadtest.game import client
from loadtest.game.levels import LEVELS, LOCKED, STOPS, WITHDRAW
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


@pytest.mark.parametrize("level", LEVELS)
def test_level_is_won_without_its_guard_and_not_with_it(level: str, game: UUID) -> None:
    client.ask(game, "begin", level=level, guarded=False)
    won = run(game, ORDERS[level])
    assert won["won"]
    assert not any(possible for one in won["buyers"] for possible in one["verbs"].values())
    client.ask(game, "begin", level=level, guarded=True)
    guarded = run(game, ORDERS[level])
    assert not guarded["won"]
    assert guarded["turn"] > 1


def test_state_is_that_of_the_stores(game: UUID) -> None:
    client.ask(game, "begin", level="race", guarded=True)
    state = run(game, "A")
    assert state["lock"]["owner"] == "A"
    assert 0 < state["lock"]["expires_in"] <= 1.5
    state = run(game, "B A A")
    assert [buyer["status"] for buyer in state["buyers"]] == ["stopped", "runs"]
    assert (state["initial"], state["quantity"], state["sold"]) == (1, 0, 1)
    state = run(game, "A")
    assert state["lock"]["owner"] == "B"
    assert [e["do"] for e in state["events"]].count("write") == 1


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
