"""A recording of all levels: every move from every state, played on real servers.

Two orders of moves that lead to the same state, as far as the page shows it and the buyers know it,
are one state from there on. So a recording is a graph: the states, and the outcome of each move.
"""

import json
import time
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
ATTEMPTS = 12
"""Starts without a new move after which the others are given up: their states depend on chance."""


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
        recorder.record()
        client.ask(game, "end")
        outcomes = [outcome for moves in recorder.moves for outcome in moves.values()]
        half = {"is_complete": None not in outcomes, "states": recorder.states}
        moves = [{move: one for move, one in moves.items() if one} for moves in recorder.moves]
        found["levels"].setdefault(level, []).append({**half, "moves": moves})
        tried = len(outcomes) - outcomes.count(None)
        guard = "with" if guarded else "without"
        yield f"{level} {guard} guard: {len(moves)} states, {tried} of {len(outcomes)} moves"
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

    def record(self) -> None:
        """Play until every move was tried, or until chance does not lead to the others."""
        failures = 0
        while failures < ATTEMPTS:
            before = [*map(str, self.moves)]
            told: list[int] = []
            here = self._number(self.settled("begin", **self.begin))
            if not self._way(here):
                return
            while way := self._way(here):
                buyer, _, verb = way[0].partition("-")
                try:
                    turn = client.ask(self.game, "state")["turn"]
                    state = self.settled("act", buyer=buyer, verb=verb, turn=turn)
                except client.StepOutdated:  # a poll of the lock has changed the state meanwhile
                    break
                telling = self.tell(state)
                if self.moves[here][way[0]] is None:
                    self.moves[here][way[0]] = [self._number(state), *telling[len(told) :]]
                outcome = self.moves[here][way[0]] or []
                if self.plain(state) != self.states[outcome[0]]:
                    break  # another waiter was first than at the first time
                here, told = outcome[0], telling
            failures = failures + 1 if before == [*map(str, self.moves)] else 0

    def _way(self, start: int) -> list[str]:
        """Return the moves to the nearest state with a move not yet tried, and that move."""
        ways: dict[int, list[str]] = {start: []}
        for here in (queue := [start]):
            for move, outcome in self.moves[here].items():
                if outcome is None:
                    return [*ways[here], move]
                if outcome[0] not in ways:
                    ways[outcome[0]] = [*ways[here], move]
                    queue.append(outcome[0])
        return []

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
