"""The recorded moves of all levels, which `manage.py learn record` has played on real servers."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils.translation import get_language

RECORDED = Path(__file__).with_name("recorded.json")
"""Sentences in all languages and buyers, to which the rest refers by number, and for each level
without and with its guard: whether all moves are recorded, its states, and by state the outcome of
each move, which is the next state and the sentences that tell what happened."""


@cache
def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text("utf-8"))
    return found


def recorded(level: str) -> list[dict[str, Any]]:
    """Return a level without and with its guard; its states are as `shown` returns them."""
    return [
        half
        | {"states": [_view(level, bool(guarded), half, n) for n in range(len(half["states"]))]}
        for guarded, half in enumerate(_read()["levels"][level])
    ]


def _view(level: str, guarded: int, half: dict[str, Any], number: int) -> dict[str, Any]:
    state, moves = half["states"][number], half["moves"][number]
    buyers = [_read()["buyers"][one] for one in state["buyers"]]
    buyers = [
        one | {"verbs": {verb: f"{one['name']}-{verb}" in moves for verb in one["verbs"]}}
        for one in buyers
    ]
    known = {"level": level, "guarded": bool(guarded), "can_undo": number > 0, "story": []}
    return {**state, **known, "buyers": buyers}


def sentences() -> list[str]:
    """Return the sentences in the active language."""
    place = [language for language, _name in settings.LANGUAGES].index(get_language() or "en")
    return [texts[place] for texts in _read()["sentences"]]
