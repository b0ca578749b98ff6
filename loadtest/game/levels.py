"""The levels: their locks, the lines at which buyers stop, and the recording of their moves.

loadtest/texts has the texts. Every move from every state was played on real servers. Two orders of
moves that lead to the same state, as far as the page shows it and the buyers know it, are one state
from there on. So a recording is a graph: the states, and the outcome of each move.
"""

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils import translation

from loadtest.charts.source import Excerpt
from loadtest.scenarios.course import COURSE
from loadtest.scenarios.testbed import BACKENDS, REDIS

RESULTS = Path(__file__).with_name("results.json")
"""By level, how many orderings `verify interleavings --keep` tried under its guard: all that there
are, and none reached the goal."""
RECORDED = Path(__file__).with_name("recorded.json")
"""Sentences in all languages and buyers, to which the rest refers by number, and for each level
without and with its guard: whether all moves are recorded, its states, and by state the outcome of
each move, which is the next state and the sentences that tell what happened."""
STOCK, TEXTBOOK = "inventory/stock.py", "loadtest/recipes/redis_textbook.py"
STEPS = {step.name: step for step in COURSE}
LOCKED = Excerpt("shop/purchase/group_commit.py", "with lock as lease")
WITHDRAW = Excerpt(STOCK, "reading = claim_stock(", "ids = commit(")
WRITE = Excerpt(STOCK, "ids = commit(")
EARLY = Excerpt("loadtest/load/shop_worker.py", "lease.backend.release(")
STOPS = {"acquire": LOCKED, "read": WITHDRAW, "write": WRITE, "release": LOCKED}
"""The lines before which every buyer stops; the `with` line runs twice."""


@dataclass(frozen=True)
class Variant:
    """A level with or without its guard."""

    alias: str
    backend: str
    code: Excerpt | None = None
    """Code to show beside that of every purchase."""
    strategy: str = "naive"
    stops: dict[str, Excerpt] = field(default_factory=dict)
    """Lines in addition to STOPS, or instead of them."""


def _redis(code: Excerpt | None = None, **options: Any) -> Variant:
    return Variant("redis", REDIS, code, **options)


def _recipe(alias: str, name: str, code: Excerpt, **stops: str) -> Variant:
    lines = {stop: Excerpt(TEXTBOOK, text) for stop, text in stops.items()}
    return Variant(alias, f"loadtest.recipes.redis_textbook.{name}", code, stops=lines)


@dataclass(frozen=True)
class Level:
    """One level. The goal is to sell more than there is."""

    broken: Variant
    guarded: Variant
    buyers: str = "AB"
    stock: int = 1
    pauses_at: tuple[str, ...] = ()
    """The stops at which A can be paused past its lease."""
    kills: bool = False
    """A can be killed, and the goal is a lock that is never free again."""

    def variant(self, guarded: bool) -> Variant:
        """Return the level with or without its guard."""
        return self.guarded if guarded else self.broken


DELETE = "self._client.delete(self.prefix + claim.name)"
LEVELS = {
    "race": Level(
        Variant("none", f"{BACKENDS}.none.NoneBackend", STEPS["race"].broken),
        _redis(STEPS["two-processes"].repaired),
    ),
    "expire": Level(
        _recipe("setnx_expire", "SetnxExpireBackend", STEPS["expire"].broken, expire="reach("),
        _recipe("set_px", "SetExpireBackend", STEPS["expire"].repaired),
        kills=True,
    ),
    "owner": Level(
        _recipe("set_px", "SetExpireBackend", STEPS["owner"].broken, release=DELETE),
        _redis(STEPS["owner"].repaired),
        buyers="ABC",
        stock=2,
        pauses_at=("release",),
    ),
    "fence": Level(
        _redis(STEPS["fence"].broken),
        _redis(STEPS["fence"].repaired, strategy="fenced"),
        pauses_at=("read", "write"),
    ),
    "commit": Level(_redis(STEPS["commit"].broken, stops={"early": EARLY}), _redis()),
}
"""By the name of the course step that each belongs to."""


def orders_tried(level: str) -> int:
    """Return how many orderings the guarded level has, 0 if that is not known."""
    return int(json.loads(RESULTS.read_text()).get(level, 0))


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
            buyers = [_read()["buyers"][one] for one in state["buyers"]]
            states.append({**state, **known, "buyers": buyers})
        halves.append({**half, "states": states})
    return halves


def sentences() -> list[str]:
    """Return the sentences in the active language."""
    place = [language for language, _name in settings.LANGUAGES].index(translation.get_language())
    return [texts[place] for texts in _read()["sentences"]]
