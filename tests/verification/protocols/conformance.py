"""Decide whether a recorded run is a run of the model of purchases.

A grant of the lock is a buyer of the model. Events are recorded after their effects, so a step of
the model may happen at any time between the events before and after it; a pause is not recorded.
The run is accepted if some order of these steps leads through all events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from loadtest.kernel.history import Event
from verification.protocols.purchase import FREE, PROTOCOL, State
from verification.protocols.search import TEXTS

ENDED = ("idle", "refused")
Steps = dict[int, frozenset[str]]
"""The actions that each buyer may take between two events."""


def accepts(events: Sequence[Event], *, strategy: str, units: int, pauses: bool) -> bool:
    """Return True if the shop's variant of a strategy, perhaps with pauses, allows the run."""
    granted = [e for e in events if (e["do"], e.get("type")) == ("acquire", "ok")]
    tokens = sorted(e["token"] for e in granted)
    buyers = {event["owner"]: place for place, event in enumerate(granted)}
    by_token = {event["token"]: place for place, event in enumerate(granted)}
    if len(by_token) < len(granted):
        return False
    faults = ("Pause",) if pauses else ()
    changes = {"strategy": strategy, "units": units, "buyers": len(granted), "faults": faults}
    rules = SimpleNamespace(**TEXTS["purchase"]["rules"] | changes)
    states: set[State] = {PROTOCOL.start(rules)._replace(faults=len(granted))}
    steps: Steps = dict.fromkeys(range(len(granted)), frozenset())
    threads: dict[int, int] = {}
    for event in events:
        states = _closure(rules, states, steps)
        match event["do"], event.get("type"):
            case "acquire", "invoke" if event["owner"] in buyers:
                steps[buyers[event["owner"]]] = frozenset({"Acquire"})
            case "acquire", "ok":
                i, token = buyers[event["owner"]], tokens.index(event["token"]) + 1
                states = {s for s in states if s.buyers[i][:2] == ("granted", token)}
                steps[i] = frozenset({"Claim", "Refuse", "Read", "SoldOut", "Pause"})
            case "read", _:
                i = threads[event["thread"]] = by_token[event["token"]]
                states = {s for s in states if _has_read(s, i, event["quantity"])}
                steps[i] = frozenset({"Send", "Commit", "RollBack", "Pause"})
            case "write", kind:
                i = threads[event["thread"]]
                at = ("told",) if kind == "ok" else ENDED
                states = {s for s in states if s.buyers[i].at in at}
                steps[i] = frozenset()
            case "release", "invoke":
                i = buyers[event["owner"]]
                states = {s._replace(holder=FREE) if s.holder == i else s for s in states}
                steps[i] = frozenset()
        if not states:
            return False
    return True


def _has_read(state: State, i: int, quantity: int | None) -> bool:
    """Return whether a buyer has read this; the strategy `conditional` reads nothing."""
    buyer = state.buyers[i]
    if quantity is None:
        return buyer.at == "granted"
    return buyer.at == "refused" if quantity == 0 else buyer[:3:2] == ("read", quantity)


def _closure(rules: Any, states: Iterable[State], steps: Steps) -> set[State]:
    """Return all states that these steps lead to, and those that they start from."""
    seen = set(states)
    waiting = list(seen)
    while waiting:
        for action, i, state in PROTOCOL.moves(rules, waiting.pop()):
            if action in steps[i] and state not in seen:
                seen.add(state)
                waiting.append(state)
    return seen
