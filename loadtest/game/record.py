"""A recording of all levels: every move from every state, played on real servers.

Two orders of moves that lead to the same state, as far as the page shows it and the buyers know it,
are one state from there on. So a recording is a graph: the states, and the outcome of each move.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils import translation

from devservers.faults.waiting import FaultFailed
from loadtest.game import client
from loadtest.game.levels import LEVELS
from loadtest.game.shown import View, shown

RECORDED = Path(__file__).with_name("recorded.json")
"""Sentences in all languages and buyers, to which the rest refers by number, and for each level
without and with its guard: whether all moves are recorded, its states, and by state the outcome of
each move, which is the next state and the sentences that tell what happened."""
QUIET_SECONDS, SETTLE_SECONDS, LIFE_SECONDS = 0.15, 15.0, 7200.0
ATTEMPTS = 8
"""Starts for a move after which it is given up."""


@cache
def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text("utf-8"))
    return found


def recorded(level: str) -> list[dict[str, Any]]:
    """Return a level without and with its guard; its states are as `shown` returns them."""
    halves = []
    for guarded, half in enumerate(_read()["levels"][level]):
        states = []
        for number, state in enumerate(half["states"]):
            known = {"level": level, "guarded": bool(guarded), "can_undo": number > 0, "story": []}
            buyers = [dict(_read()["buyers"][one]) for one in state["buyers"]]
            for one in buyers:  # a move without a recording is not possible
                names = {verb: f"{one['name']}-{verb}" for verb in one["verbs"]}
                one["verbs"] = {verb: names[verb] in half["moves"][number] for verb in names}
            states.append({**state, **known, "buyers": buyers})
        halves.append({**half, "states": states})
    return halves


def sentences() -> list[str]:
    """Return the sentences in the active language."""
    place = [language for language, _name in settings.LANGUAGES].index(translation.get_language())
    return [texts[place] for texts in _read()["sentences"]]


def record() -> Iterator[str]:
    """Record all levels in RECORDED; yield a line about each."""
    found: dict[str, Any] = {"levels": {}}
    texts: dict[Any, int] = {}
    buyers: dict[str, int] = {}
    for level, guarded in product(LEVELS, (False, True)):
        game = client.start(level, life=LIFE_SECONDS)
        recorder = Recorder(game, level, guarded, texts, buyers)
        try:
            recorder.record()
        finally:
            client.ask(game, "end")
        half = recorder.found()
        found["levels"].setdefault(level, []).append(half)
        states, moves = len(half["states"]), sum(map(len, half["moves"]))
        name = f"{level} {'with' if guarded else 'without'} guard"
        yield f"{name}: {states} states, {'' if half['is_complete'] else 'not '}all {moves} moves"
    found |= {"sentences": [*texts], "buyers": [*map(json.loads, buyers)]}
    words = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    RECORDED.write_text(f"{words}\n", "utf-8")


class Recorder:
    """Records one level; `texts` and `buyers` have the numbers of what all levels share."""

    def __init__(
        self, game: UUID, level: str, guarded: bool, texts: dict[Any, int], buyers: dict[str, int]
    ) -> None:
        self.game, self.begin = game, {"level": level, "guarded": guarded}
        self.texts, self.buyers = texts, buyers
        self.states: list[View] = []
        self.moves: list[dict[str, list[int] | None]] = []
        self.attempts: Counter[tuple[int, str]] = Counter()

    def record(self) -> None:
        """Play until every move was tried, except those whose states only chance leads to."""
        while way := self._way(here := self._number(self.settled("begin", **self.begin))):
            told: list[int] = []
            self.attempts.update(way[-1:])
            while way:
                move = way[0][1]
                buyer, _, verb = move.partition("-")
                turn = client.ask(self.game, "state")["turn"]
                try:
                    state = self.settled("act", buyer=buyer, verb=verb, turn=turn)
                except client.StepOutdated:  # a poll of the lock has changed the state meanwhile
                    break
                there, telling = self._number(state), self.tell(state)
                if self.moves[here][move] is None:
                    self.moves[here][move] = [there, *telling[len(told) :]]
                here, told = there, telling  # that of the recording, if chance did not decide
                way = self._way(here)

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

    def _number(self, state: View) -> int:
        """Return the number of a state; add it if it is new."""
        view = self.plain(state)
        if view not in self.states:
            verbs = {one["name"]: one["verbs"] for one in state["buyers"]}
            moves = [
                f"{who}-{verb}" for who, found in verbs.items() for verb in found if found[verb]
            ]
            self.states.append(view)
            self.moves.append(dict.fromkeys(moves))
        return self.states.index(view)

    def plain(self, state: View) -> View:
        """Return a state as it is recorded, without what differs in each run."""
        view = shown(state)
        for name in ("level", "guarded", "turn", "moves", "can_undo", "story"):
            del view[name]
        if lock := view["lock"]:
            lock |= {"name": "sale:1", "ends": lock["ends"] and 0}
        words = map(json.dumps, view["buyers"])
        return {**view, "buyers": [self.buyers.setdefault(one, len(self.buyers)) for one in words]}

    def tell(self, state: View) -> list[int]:
        """Return the numbers of the sentences so far."""
        stories = []
        for language, _name in settings.LANGUAGES:
            with translation.override(language):
                stories.append(shown(state)["story"])
        return [self.texts.setdefault(one, len(self.texts)) for one in zip(*stories, strict=True)]

    def settled(self, do: str, **fields: Any) -> View:
        """Send a request; return the state once nothing more happens without another one."""
        state = client.ask(self.game, do, **fields)
        seen: tuple[View, int] | None = None
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            now = self.plain(state), len(state["events"])
            dead = [one["name"] for one in state["buyers"] if one["status"] == "killed"]
            if lock := now[0]["lock"]:
                is_due = lock["owner"] in dead and lock["ends"] is not None
            else:
                is_due = bool(now[0]["waiting"])
            if now == seen and not is_due:
                return state
            seen = now
            time.sleep(QUIET_SECONDS)
            state = client.ask(self.game, "state")
        raise FaultFailed(f"{state['level']}: does not come to rest")
