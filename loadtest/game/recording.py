"""The recording of all levels: every move from every state, played on real servers.

Two orders of moves that lead to the same state, as far as the page shows it and the buyers know it,
are one state from there on. So a recording is a graph: the states, and the outcome of each move.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils import translation

RECORDED = Path(__file__).with_name("recorded.json")
"""Sentences in all languages and buyers, to which the rest refers by number, and for each level
without and with its guard: whether all moves are recorded, its states, and by state the outcome of
each move, which is the next state and the sentences that tell what happened."""


@cache
def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text("utf-8"))
    return found


@cache
def recorded(level: str) -> list[dict[str, Any]]:
    """Return a level without and with its guard; its states are what the page shows."""
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
