"""Breadth-first search through all states of a protocol, for the shortest way to break a promise.

    result = search(protocol, variant)
    result.verdict       # "violation", "no violation", or "undecided": the bound was reached
    result.trace         # action and sentence of each step to the violation

A state is an immutable tuple whose first item are the clients. Each state is visited once, as
explicit-state model checkers do (https://lamport.org/tla/tools.html).
"""

import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

LIMIT = 400_000
"""States after which a search gives up, undecided."""
UNDECIDED = "undecided"
NAMES = "ABC"
"""The clients of the models."""
TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("protocols.toml").read_text())

State = TypeVar("State", bound=Any)
Moves = Iterable[tuple[str, int, Any]]
"""Name of the action, place of the client that it concerns (0 if none), and next state."""
Promises = Mapping[str, Callable[[Any, Any], bool]]
"""Predicates of the rules and a state, true in good states."""


class Protocol(NamedTuple):
    """The steps that are possible in each state, and the promises; see protocols.toml."""

    name: str
    start: Callable[[Any], Any]
    moves: Callable[[Any, Any], Moves]
    promises: Promises
    promises_at_rest: Promises = {}
    """They hold in states in which nothing but a fault can happen."""


class Result(NamedTuple):
    """The verdict of a search; `states` are all that there are, if nothing is violated."""

    verdict: str
    states: int
    promise: str = ""
    trace: tuple[tuple[str, str], ...] = ()


def search(protocol: Protocol, variant: str, *, limit: int = LIMIT) -> Result:
    """Return the verdict on a variant, with the shortest trace to a violation."""
    texts = TEXTS[protocol.name]
    actions, faults = texts["actions"], texts["faults"]
    rules = SimpleNamespace(**texts["rules"] | texts["variants"][variant].get("rules", {}))
    start = protocol.start(rules)
    parents: dict[Any, tuple[Any, str, int] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        moves = list(protocol.moves(rules, state))
        promises = dict(protocol.promises)
        if all(action in faults for action, _, _ in moves):
            promises |= protocol.promises_at_rest
        if broken := [name for name, holds in promises.items() if not holds(rules, state)]:
            trace = []
            while parent := parents[state]:
                before, action, i = parent
                text = (actions | faults)[action].format(name=NAMES[i], me=state[0][i], s=state)
                trace.append((action, text))
                state = before
            return Result("violation", len(parents), broken[0], tuple(reversed(trace)))
        for action, client, following in moves:
            if following not in parents:
                if len(parents) == limit:
                    return Result(UNDECIDED, limit)
                parents[following] = state, action, client
                waiting.append(following)
    return Result("no violation", len(parents))


def report(protocol: Protocol) -> Iterator[dict[str, Any]]:
    """Yield the result of each variant, with its texts, as JSON and for people."""
    for name, variant in TEXTS[protocol.name]["variants"].items():
        found, breaks = search(protocol, name), variant.get("breaks", "")
        verdict = f'breaks "{found.promise}" at step {len(found.trace)}'
        yield {
            "model": protocol.name,
            "variant": name,
            **{"rules": {}, "breaks": "", "scenario": ""} | variant,
            "states": found.states,
            "verdict": verdict if found.promise else found.verdict,
            "is_expected": found.promise == breaks and found.verdict != UNDECIDED,
            "trace": [{"action": action, "text": text} for action, text in found.trace],
        }


def changed(state: State, place: int, **values: Any) -> State:
    """Return the state with these values of the client at `place`."""
    clients = list(state[0])
    clients[place] = clients[place]._replace(**values)
    now: State = state._replace(**{state._fields[0]: tuple(clients)})
    return now
