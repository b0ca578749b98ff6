"""Decide whether a history is linearizable: as if each operation had happened at one instant.

The instant lies between the operation's call and its return; an operation with an unknown outcome
may happen at any time after its call, or never. The search is that of Wing and Gong ("Testing and
verifying concurrent objects", 1993) with the configurations and the just-in-time steps of Lowe
("Testing for linearizability", 2017): it follows calls and returns in order of time, remembers
each configuration once, and lets a pending operation happen no earlier than a return requires.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from loadtest.kernel.history import Event

BUDGET = 20_000_000
"""Steps after which a check ends undecided: about a minute."""
NEIGHBOURS = 3
"""Operations named before and after the first illegal one."""
Config = tuple[Hashable, int]
"""The object's state, and a bit for each pending operation that has happened."""


class BadHistory(ValueError):
    """The events are no history of the operations that a model knows."""


class Operation(NamedTuple):
    """An operation, from its call to its return (monotonic nanoseconds)."""

    actor: str
    do: str
    outcome: str
    """ok, fail, or unknown; then it returned at infinity."""
    called: int
    returned: float
    event: Event
    """The last event."""


class Model(ABC):
    """The sequential behaviour of an object."""

    initial: Hashable

    @abstractmethod
    def objects(self, operations: Iterable[Operation]) -> dict[str, list[Operation]]:
        """Return by object the operations that can matter. Raise BadHistory."""

    @abstractmethod
    def step(self, state: Any, operation: Operation) -> Hashable:
        """Return the state after the operation, None if it cannot happen with its outcome."""

    def group(self, operation: Operation) -> tuple[Hashable, Any]:
        """Return a group and a rank; of a group, the lowest pending rank must happen first.

        Either any other order is illegal, or exchanging the two is never noticed.
        """
        return operation[:5], 0

    def is_dead(self, state: Any, target: Operation, owners: Counter[Any]) -> bool:
        """Return True if the target cannot follow; `owners` counts the pending operations."""
        return False


class Verdict(NamedTuple):
    """The result for one object."""

    name: str
    verdict: str
    """legal, illegal or undecided."""
    operations: int
    steps: int
    """Attempts to let an operation happen."""
    wrong: Operation | None = None
    """The first operation whose return no order of the operations explains."""
    near: Sequence[Operation] = ()
    """The operation that cannot be ordered and its neighbours, in order of their calls."""


def check(events: Iterable[Event], model: Model, *, budget: int = BUDGET) -> list[Verdict]:
    """Check each object of a history, with `budget` steps for each. Raise BadHistory."""
    try:
        objects = model.objects(operations_of(events))
        return [_check(name, found, _Search(model, budget)) for name, found in objects.items()]
    except (KeyError, TypeError, AttributeError) as error:
        raise BadHistory(f"an event lacks a field or has a wrong one: {error}") from error


def operations_of(events: Iterable[Event]) -> list[Operation]:
    """Return the operations, in order of their calls; one without an end has an unknown outcome."""
    called: dict[tuple[str, int], Event] = {}
    ended: dict[tuple[str, int], Event] = {}
    kinds = {"invoke": called, "ok": ended, "fail": ended, "unknown": ended}
    for event in events:
        if "id" in event:  # else an instant
            key, found = (event["actor"], event["id"]), kinds[event["type"]]
            if (found is called) == (key in called) or key in ended:
                raise BadHistory(f"operation {key[1]} of {key[0]} has no call, or two ends")
            found[key] = event
    operations = []
    for key, call in called.items():
        end = ended.get(key, {**call, "type": "unknown"})
        at = math.inf if end["type"] == "unknown" else end["t"]
        operations.append(Operation(key[0], call["do"], end["type"], call["t"], at, end))
    return sorted(operations, key=lambda one: one.called)


def _check(name: str, operations: Sequence[Operation], search: "_Search") -> Verdict:
    # Where the clock cannot tell, a call precedes a return: the two may overlap.
    times: list[tuple[float, int, int]] = []
    for number, one in enumerate(operations):
        times += [(one.called, 0, number), (one.returned, 1, number)]
    for at, is_return, number in sorted(times):
        if at == math.inf or search.steps > search.budget:
            break
        if not is_return:
            search.call(number, operations[number])
            continue
        search.end(number)
        if not search.configs and search.steps <= search.budget:
            near = operations[max(0, number - NEIGHBOURS) : number + 1 + NEIGHBOURS]
            return Verdict(name, "illegal", len(operations), search.steps, operations[number], near)
    verdict = "undecided" if search.steps > search.budget else "legal"
    return Verdict(name, verdict, len(operations), search.steps)


class _Search:
    """The configurations that explain all returns so far."""

    def __init__(self, model: Model, budget: int) -> None:
        self.model, self.budget, self.steps = model, budget, 0
        self.configs: set[Config] = {(model.initial, 0)}
        self._pending: dict[int, tuple[Operation, Hashable, Any]] = {}
        """By the number of its bit: an operation, its group and its rank."""
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._owners: Counter[Any] = Counter()

    def call(self, number: int, operation: Operation) -> None:
        slot = self._slots[number] = self._free.pop() if self._free else len(self._slots)
        self._pending[slot] = (operation, *self.model.group(operation))
        self._owners[operation.event.get("owner")] += 1

    def end(self, number: int) -> None:
        """Keep the configurations in which the operation has happened."""
        slot, step, is_dead = self._slots.pop(number), self.model.step, self.model.is_dead
        bit, target = 1 << slot, self._pending[slot][0]
        found = {(state, mask ^ bit) for state, mask in self.configs if mask & bit}
        todo = [config for config in self.configs if not config[1] & bit]
        seen = set(todo)
        while todo and self.steps <= self.budget:
            state, mask = todo.pop()
            for other in self._enabled(mask):
                self.steps += 1
                after = step(state, self._pending[other][0])
                if after is None:
                    continue
                config = (after, mask | 1 << other)
                if other == slot:
                    found.add((after, mask))
                elif config not in seen and not is_dead(after, target, self._owners):
                    seen.add(config)
                    todo.append(config)
        del self._pending[slot]
        self._free.append(slot)
        self._owners[target.event.get("owner")] -= 1
        self.configs = found

    def _enabled(self, mask: int) -> list[int]:
        """Return the pending operations that may happen next, by the order within their groups."""
        lowest: dict[Hashable, tuple[Any, int]] = {}
        for slot, (_, group, rank) in self._pending.items():
            if not mask >> slot & 1 and (group not in lowest or rank < lowest[group][0]):
                lowest[group] = rank, slot
        return [slot for _, slot in lowest.values()]
