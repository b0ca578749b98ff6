"""Play every move from every state of a level on real servers, and record what each one did.

Two orders of moves that lead to the same state, as far as the page shows it and the buyers know it,
are one state from there on. So a recording is a graph: the states, and the target of each move.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils import translation

from devservers.faults.waiting import FaultFailed
from loadtest.game import client
from loadtest.game.levels import LEVELS
from loadtest.game.recorded import RECORDED
from loadtest.game.shown import View, shown

LIFE_SECONDS = 7200.0
QUIET_SECONDS = 0.15
"""A state in which nothing has happened for this long, and no lease of a dead holder runs, is the
outcome of a move."""
SETTLE_SECONDS = 15.0
ATTEMPTS = 12
"""Starts without a new move after which the others are given up: their states depend on chance."""


def record() -> Iterator[str]:
    """Record all levels in RECORDED, without and with their guards; yield a line about each."""
    sentences: dict[tuple[str, ...], int] = {}
    buyers: dict[str, int] = {}
    levels: dict[str, Any] = {}
    for level, guarded in product(LEVELS, (False, True)):
        with _game(level) as game:
            half = Recorder(level, guarded=guarded, sentences=sentences).record(game)
        for state in half["states"]:
            texts = map(json.dumps, state["buyers"])
            state["buyers"] = [buyers.setdefault(text, len(buyers)) for text in texts]
        levels.setdefault(level, []).append(half)
        states, moves = len(half["states"]), sum(map(len, half["moves"]))
        name = f"{level} {'with' if guarded else 'without'} its guard"
        yield f"{name}: {states} states, {'' if half['is_complete'] else 'not '}all {moves} moves"
    found = {"sentences": [*sentences], "buyers": [*map(json.loads, buyers)], "levels": levels}
    words = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    RECORDED.write_text(f"{words}\n", "utf-8")


@contextmanager
def _game(level: str) -> Iterator[UUID]:
    game = client.start(level, life=LIFE_SECONDS)
    try:
        yield game
    finally:
        client.ask(game, "end")


class Recorder:
    """One level, with or without its guard. `sentences` are shared by all levels, by language."""

    def __init__(self, level: str, *, guarded: bool, sentences: dict[tuple[str, ...], int]) -> None:
        self.level, self.guarded, self.sentences = level, guarded, sentences
        self.states: list[View] = []
        self.moves: list[dict[str, list[int] | None]] = []
        """By state, the target of each move, and the numbers of the sentences that it adds."""
        self._numbers: dict[str, int] = {}

    def record(self, game: UUID) -> dict[str, Any]:
        """Return the recording. Raise FaultFailed if a move does not come to rest."""
        failures = 0
        while failures < ATTEMPTS:
            before = self._count()
            if not self._play(game):
                break
            failures = 0 if self._count() > before else failures + 1
        return self._reached()

    def _reached(self) -> dict[str, Any]:
        """Return the states that the recorded moves lead to; chance has led to others as well."""
        numbers = {0: 0}
        for here in (queue := [0]):
            for there, *_ in _tried(self.moves[here]).values():
                if there not in numbers:
                    numbers[there] = len(numbers)
                    queue.append(there)
        return {
            "is_complete": all(None not in self.moves[here].values() for here in queue),
            "states": [self.states[here] for here in queue],
            "moves": [
                {
                    move: [numbers[there], *told]
                    for move, (there, *told) in _tried(self.moves[here]).items()
                }
                for here in queue
            ],
        }

    def _count(self) -> int:
        return sum(len(_tried(moves)) for moves in self.moves)

    def _play(self, game: UUID) -> bool:
        """Play once, from one move that was not tried to the next; return False without any."""
        state = client.ask(game, "begin", level=self.level, guarded=self.guarded)
        here, told = self._add(_settled(game, state))
        has_played = False
        while way := self._way(here):
            has_played = True
            buyer, _, verb = way[0].partition("-")
            try:
                turn = client.ask(game, "state")["turn"]
                state = client.ask(game, "act", buyer=buyer, verb=verb, turn=turn)
            except client.StepOutdated:  # a poll of the lock has changed the state meanwhile
                break
            there, telling = self._add(_settled(game, state))
            if telling[: len(told)] != told:
                raise FaultFailed(f"{self.level}: {way[0]} changes what was told before")
            if self.moves[here][way[0]] is None:
                self.moves[here][way[0]] = [there, *telling[len(told) :]]
            here, told = there, telling
        return has_played

    def _add(self, state: View) -> tuple[int, list[int]]:
        """Return the number of a state, and those of the sentences so far."""
        texts = []
        for language, _name in settings.LANGUAGES:
            with translation.override(language):
                view = shown(state)
            texts.append(view.pop("story"))
        sentences = zip(*texts, strict=True)
        told = [self.sentences.setdefault(one, len(self.sentences)) for one in sentences]
        for name in ("level", "guarded", "turn", "moves", "can_undo"):
            del view[name]
        if lock := view["lock"]:
            lock |= {"name": "sale:1", "ends": lock["ends"] and 0}  # these differ in each run
        number = self._numbers.setdefault(json.dumps(view), len(self.states))
        if number == len(self.states):
            self.states.append(view)
            self.moves.append(dict.fromkeys(_moves(view)))
        return number, told

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


def _tried(moves: dict[str, list[int] | None]) -> dict[str, list[int]]:
    return {move: outcome for move, outcome in moves.items() if outcome is not None}


def _moves(view: View) -> Iterator[str]:
    for one in view["buyers"]:
        yield from (f"{one['name']}-{verb}" for verb, possible in one["verbs"].items() if possible)


def _settled(game: UUID, state: View) -> View:
    """Return the state once nothing more happens without a move."""
    deadline, quiet_since = time.monotonic() + SETTLE_SECONDS, time.monotonic()
    while time.monotonic() < deadline:
        held = state["lock"]
        dead = {one["name"] for one in state["buyers"] if one["status"] == "killed"}
        is_ending = held and held["owner"] in dead and held["expires_in"] is not None
        if not is_ending and time.monotonic() - quiet_since > QUIET_SECONDS:
            return state
        time.sleep(QUIET_SECONDS / 3)
        now = client.ask(game, "state")
        if is_ending or _without_times(now) != _without_times(state):
            quiet_since = time.monotonic()
        state = now
    raise FaultFailed(f"{state['level']}: does not come to rest")


def _without_times(state: View) -> View:
    return state | {"lock": (state["lock"] or {}).get("owner"), "events": len(state["events"])}
