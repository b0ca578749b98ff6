"""An independent check of short histories: it tries every order, on objects written for it alone.

It shares no code with verification/histories, so that a mistake there is not repeated here.
"""

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

NEVER = 10**9


@dataclass
class Op:
    """An operation as a test describes it; `returned` is NEVER if the outcome is unknown."""

    actor: str
    do: str
    fields: dict[str, Any]
    outcome: str = "ok"
    called: int = 0
    returned: int = NEVER


@dataclass
class Lock:
    """A lock that lists its grants; `most` owners may hold it at once, or one that writes."""

    is_reentrant: bool = False
    is_fenced: bool = False
    most: int = 1
    grants: list[str] = field(default_factory=list)
    is_writing: bool = False
    top: int = -1

    def allows(self, op: Op) -> bool:
        """Do what the operation does; return whether it can have had its outcome."""
        owner = op.fields["owner"]
        is_held = owner in self.grants
        if op.do == "acquire":
            return op.outcome == "fail" or self.grant(op.fields, owner, is_held)
        if op.outcome == "fail":  # the lock was lost, which only a fenced one may be
            self.grants = [one for one in self.grants if one != owner]
            return self.is_fenced or not is_held
        if op.do == "release" and is_held:
            self.grants.remove(owner)
        return is_held or op.outcome == "unknown"

    def grant(self, fields: dict[str, Any], owner: str, is_held: bool) -> bool:
        token, writes = fields.get("token"), fields.get("mode") == "write"
        if self.is_fenced and not (self.is_reentrant and is_held and token in (None, self.top)):
            token = self.top + 1 if token is None else token
            is_possible, self.top, self.grants = token > self.top, token, []
        elif self.is_reentrant and is_held:
            is_possible = True
        else:
            is_free = not self.grants if writes else not (self.grants and self.is_writing)
            is_possible = is_free and not is_held and len(self.grants) < self.most
        self.grants.append(owner)
        self.is_writing = writes
        return is_possible


@dataclass
class Shelf:
    """Units, and what the orders did with them. The order of a key has its name."""

    units: int = 3
    bought: set[str] = field(default_factory=set)
    pending: dict[str, int] = field(default_factory=dict)

    def allows(self, op: Op) -> bool:
        """Do what the operation does; return whether it can have had its outcome."""
        if op.do != "buy":
            is_possible = op.fields["order"] in self.pending
            units = self.pending.pop(op.fields["order"], 0)
            self.units += units if op.do == "cancel" else 0
            return is_possible or op.outcome == "fail"
        key, quantity = op.fields["key"], op.fields["quantity"]
        if op.outcome == "fail":
            return op.fields["error"] != "SoldOut" or self.units < quantity
        if op.fields.get("replayed"):
            return key in self.bought
        is_possible = key not in self.bought and self.units >= quantity
        self.units -= quantity
        self.bought.add(key)
        self.pending[f"order {key}"] = quantity
        return is_possible


OBJECTS: dict[str, Callable[[], Lock | Shelf]] = {
    "mutex": Lock,
    "reentrant": lambda: Lock(is_reentrant=True),
    "fenced": lambda: Lock(is_fenced=True),
    "reentrant-fenced": lambda: Lock(is_reentrant=True, is_fenced=True),
    "semaphore": lambda: Lock(most=2),
    "read-write": lambda: Lock(most=NEVER),
    "stock": Shelf,
}


def is_legal(model: str, ops: list[Op]) -> bool:
    """Return True if some order of the operations explains all outcomes."""
    return _explain(OBJECTS[model](), ops)


def _explain(thing: Lock | Shelf, left: list[Op]) -> bool:
    first_return = min((op.returned for op in left), default=NEVER)
    if first_return == NEVER:
        return True
    for number, op in enumerate(left):
        after = copy.deepcopy(thing)
        is_first = op.called <= first_return  # else another one has ended before it began
        if is_first and after.allows(op) and _explain(after, left[:number] + left[number + 1 :]):
            return True
    return False


def events_of(ops: list[Op]) -> list[dict[str, Any]]:
    """Return the lines that `Recorder` would have written."""
    events = []
    for id, op in enumerate(ops):
        head = {"actor": op.actor, "do": op.do, "id": id}
        events.append({**head, "t": op.called, "type": "invoke", **asked(op)})
        if op.returned < NEVER:
            events.append({**head, "t": op.returned, "type": op.outcome, **op.fields})
    return sorted(events, key=lambda event: (event["t"], event["type"] != "invoke"))


def asked(op: Op) -> dict[str, Any]:
    """Return the arguments of the operation."""
    results = {"token", "replayed", "error"} | ({"order"} if op.do == "buy" else set())
    return {name: value for name, value in op.fields.items() if name not in results}


def random_history(model: str, rng: random.Random, wrong: float) -> list[Op]:
    """Return at most eight operations; with a chance of `wrong`, one that is impossible now."""
    thing, ops, count = OBJECTS[model](), list[Op](), rng.randint(3, 8)
    owners = [f"owner {number}" for number in range(rng.randint(2, 4))]
    while len(ops) < count:
        op, after = _any(model, thing, rng, rng.choice(owners)), copy.deepcopy(thing)
        op.actor = f"actor {len(ops)}"  # two calls of one actor are not at the same time
        instant = 100 * (len(ops) + 1)
        op.called = max(0, instant - rng.choice([5, 50, 150, 300]))
        op.returned = instant + rng.choice([5, 50, 150, 300])
        if rng.random() < 0.2:
            op.outcome, op.fields, op.returned = "unknown", asked(op), NEVER
        if op.outcome != "unknown" or rng.random() < 0.5:  # else it never happened
            if not after.allows(op) and rng.random() >= wrong:
                continue
            thing = after
        ops.append(op)
    return ops


def _any(model: str, thing: Lock | Shelf, rng: random.Random, owner: str) -> Op:
    outcome = rng.choice(["ok", "ok", "fail"])
    if isinstance(thing, Shelf):
        if thing.bought and rng.random() < 0.3:
            order = {"order": f"order {rng.choice(sorted(thing.bought))}"}
            return Op("", rng.choice(["pay", "cancel"]), order)
        key = rng.choice("abcdefgh")
        fields: dict[str, Any] = {"user": 1, "key": key, "quantity": rng.randint(1, 2)}
        if outcome == "fail":
            fields["error"] = rng.choice(["SoldOut", "LimitReached"])
        else:
            fields["order"] = f"order {key}"
            fields["replayed"] = key in thing.bought
        return Op("", "buy", fields, outcome)
    do = rng.choice(["acquire", "acquire", "release", "release", "renew"])
    lock: dict[str, Any] = {"name": "lock", "owner": owner}
    if outcome == "fail":
        lock["error"] = "LockLost"
    if do == "acquire":
        lock["backend"] = "redis"
        if model == "read-write":
            lock["mode"] = rng.choice(["read", "write"])
        if outcome == "ok":
            lock["token"] = max(0, thing.top + rng.choice([-1, 0, 1, 1, 2]) * thing.is_fenced)
    return Op("", do, lock, outcome)


def histories(model: str, count: int, seed: int) -> Iterator[tuple[list[Op], bool]]:
    """Yield `count` histories with the verdict of this module, half of them illegal."""
    rng = random.Random(f"{model} {seed}")
    wanted = {True: count - count // 2, False: count // 2}
    while any(wanted.values()):
        ops = random_history(model, rng, wrong=0.3 if wanted[False] else 0)
        told = {op.fields["order"] for op in ops if op.do == "buy" and "order" in op.fields}
        if any(op.fields["order"] not in told for op in ops if op.do in ("pay", "cancel")):
            continue  # whose order that is, nothing tells
        verdict = is_legal(model, ops)
        if wanted[verdict]:
            wanted[verdict] -= 1
            yield ops, verdict
