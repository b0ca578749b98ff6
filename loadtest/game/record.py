"""Record the levels of the game: `manage.py learn record` plays their moves on real servers."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from typing import Any

from django.conf import settings
from django.utils import translation

from devservers.faults.waiting import FaultFailed
from devservers.faults.worker import emit
from loadtest.charts.timeline_data import TimelineData
from loadtest.charts.timeline_story import story
from loadtest.game.game import Game
from loadtest.game.levels import LEVELS, RECORDED
from loadtest.kernel.history import Event
from loadtest.kernel.session import events
from loadtest.kernel.topology import Stores, Topology

View = dict[str, Any]
TOPOLOGY = Topology(servers=("redis",), environ={"LOG_LEVEL": "ERROR"})
QUIET_SECONDS, SETTLE_SECONDS = 0.15, 15.0
ATTEMPTS = 8
"""Starts for a move after which it is given up."""


def record() -> Iterator[str]:
    """Record all moves of all levels in RECORDED; yield a line about each level."""
    for event in play(dict.fromkeys(LEVELS)):
        if event["event"] == "level":
            yield "{name}: {states} states, {all}all {moves} moves".format(**event)
        if event["event"] == "report":
            words = json.dumps(event["report"], ensure_ascii=False, separators=(",", ":"))
            RECORDED.write_text(f"{words}\n", "utf-8")


def play(orders: dict[str, str | None]) -> Iterator[dict[str, Any]]:
    """Return the events of a recording of levels; the last one has it as its "report".

    By level, `orders` has the moves to play, such as "A-step B-step", or None for all of them.
    Raise ExperimentFailed.
    """
    return events("loadtest.game.record", {"orders": orders}, TOPOLOGY, {}, lambda event: None)


def main(asked: dict[str, Any], stores: Stores) -> dict[str, Any]:
    """Return the recording of the levels, each without and with its guard."""
    texts: dict[Any, int] = {}
    buyers: dict[str, int] = {}
    levels: dict[str, list[dict[str, Any]]] = {}
    with closing(Game(stores)) as game:
        for (level, order), guarded in product(asked["orders"].items(), (False, True)):
            recorder = Recorder(game, level, guarded, texts, buyers)
            recorder.record(order)
            half = recorder.found()
            levels.setdefault(level, []).append(half)
            states, moves = len(half["states"]), sum(map(len, half["moves"]))
            said = {"name": f"{level} {'with' if guarded else 'without'} guard"}
            said["all"] = "" if half["is_complete"] else "not "
            emit("level", **said, states=states, moves=moves)
    return {"levels": levels, "sentences": [*texts], "buyers": [*map(json.loads, buyers)]}


class Recorder:
    """Records one level; `texts` and `buyers` have the numbers of what all levels share."""

    def __init__(
        self, game: Game, level: str, guarded: bool, texts: dict[Any, int], buyers: dict[str, int]
    ) -> None:
        self.game, self.level, self.guarded = game, level, guarded
        self.texts, self.buyers = texts, buyers
        self.told: list[int] = []
        """The sentences since the beginning."""
        self.states: list[View] = []
        self.moves: list[dict[str, list[int] | None]] = []
        self.attempts: Counter[tuple[int, str]] = Counter()

    def record(self, order: str | None) -> None:
        """Play the moves of an order that are possible.

        Without an order, play until every move was tried, except those whose states only chance
        leads to.
        """
        if order is not None:
            here: int | None = self._begin()
            for move in order.split():
                if here is not None and move in self.moves[here]:
                    here = self._move(here, move)
            return
        while way := self._way(here := self._begin()):
            self.attempts.update(way[-1:])
            while way and (here := self._move(here, way[0][1])) is not None:
                way = self._way(here)

    def _begin(self) -> int:
        """Start the level; return the number of its state."""
        self.game.begin(self.level, self.guarded)
        self.told = []
        return self._number(self.settled()[0])

    def _move(self, here: int, move: str) -> int | None:
        """Make a move; return the state that it leads to, None if it is no longer possible.

        That is not the recorded one if chance decides.
        """
        buyer, _, verb = move.partition("-")
        if not self.game.act(buyer, verb):  # a poll of the lock has changed the state meanwhile
            return None
        view, events = self.settled()
        there, telling = self._number(view), self.tell(events)
        if self.moves[here][move] is None:
            self.moves[here][move] = [there, *telling[len(self.told) :]]
        self.told = telling
        return there

    def _way(self, start: int) -> list[tuple[int, str]]:
        """Return the moves, with their states, to the nearest one that is to be tried."""
        ways: dict[int, list[tuple[int, str]]] = {start: []}
        for here in (queue := [start]):
            for move, outcome in self.moves[here].items():
                way = [*ways[here], (here, move)]
                if outcome is None and self.attempts[here, move] < ATTEMPTS:
                    return way
                if outcome and outcome[0] not in ways:
                    ways[outcome[0]] = way
                    queue.append(outcome[0])
        return []

    def found(self) -> dict[str, Any]:
        """Return the states that recorded moves lead to; chance has led to others as well."""
        order = [0]
        for here in order:
            outcomes = [one for one in self.moves[here].values() if one]
            order += dict.fromkeys(one[0] for one in outcomes if one[0] not in order)
        kept = [self.moves[here] for here in order]
        return {
            "is_complete": all(None not in moves.values() for moves in kept),
            "states": [self.states[here] for here in order],
            "moves": [
                {move: [order.index(one[0]), *one[1:]] for move, one in moves.items() if one}
                for moves in kept
            ],
        }

    def _number(self, view: View) -> int:
        """Return the number of a state; add it if it is new."""
        verbs = {one["name"]: one["verbs"] for one in view["buyers"]}
        words = map(json.dumps, view["buyers"])
        buyers = [self.buyers.setdefault(one, len(self.buyers)) for one in words]
        view = {**view, "buyers": buyers}
        if view not in self.states:
            moves = [
                f"{who}-{verb}" for who, found in verbs.items() for verb in found if found[verb]
            ]
            self.states.append(view)
            self.moves.append(dict.fromkeys(moves))
        return self.states.index(view)

    def tell(self, events: list[Event]) -> list[int]:
        """Return the numbers of the sentences so far."""
        variant = self.game.variant
        known: View = {"events": events, "guard": variant.strategy}
        known["has_fences"] = variant.alias == "redis"
        stories = []
        for language, _name in settings.LANGUAGES:
            with translation.override(language):
                stories.append([one.text for one in story(known)])
        return [self.texts.setdefault(one, len(self.texts)) for one in zip(*stories, strict=True)]

    def settled(self) -> tuple[View, list[Event]]:
        """Return the state and its events once nothing more happens without another move.

        Raise FaultFailed if that takes too long, or if no store can have done what was recorded.
        """
        seen: tuple[View, int] | None = None
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            events = self.game.events()
            view = self.game.view(events)
            now = view, len(events)
            dead = [one["name"] for one in view["buyers"] if one["status"] == "killed"]
            if lock := view["lock"]:
                is_due = lock["owner"] in dead and lock["ends"] is not None
            else:
                is_due = bool(view["waiting"])
            if now == seen and not is_due:
                if wrong := TimelineData({"events": events}).contradictions():
                    raise FaultFailed(f"{self.level}: the recording contradicts itself: {wrong[0]}")
                return view, events
            seen = now
            time.sleep(QUIET_SECONDS)
        raise FaultFailed(f"{self.level}: does not come to rest")
