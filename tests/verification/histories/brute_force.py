"""An independent check of short histories: it tries every order, on objects written for it alone.

It shares no code with verification/histories, so that a mistake there is not repeated here.
`random_history` makes histories that are legal by construction, `mutated` changes one.
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


class Impossible(Exception):
    """The object cannot have had this outcome now."""


def need(is_possible: bool) -> None:
    if not is_possible:
        raise Impossible


@dataclass
class Lock:
    """A lock that lists its grants; `most` owners may hold it at once."""

    is_reentrant: bool = False
    is_fenced: bool = False
    most: int = 1
    has_writers: bool = False
    grants: list[str] = field(default_factory=list)
    writers: list[str] = field(default_factory=list)
    top: int = -1

    def apply(self, op: Op) -> None:
        """Do what the operation does, and compare its outcome."""
        owner = op.fields["owner"]
        getattr(self, op.do)(op, owner)

    def acquire(self, op: Op, owner: str) -> None:
        if op.outcome == "fail":
            return
        token = op.fields.get("token")
        is_again = self.is_reentrant and owner in self.grants
        if is_again and (not self.is_fenced or token in (None, self.top)):
            self.grants.append(owner)
        elif self.is_fenced:
            token = self.top + 1 if token is None else token
            need(token > self.top)
            self.top, self.grants = token, [owner]
        elif self.has_writers and op.fields.get("mode") == "write":
            need(not self.grants and not self.writers)
            self.writers = [owner]
        else:
            need(len(self.grants) < self.most and owner not in self.grants and not self.writers)
            self.grants.append(owner)

    def release(self, op: Op, owner: str) -> None:
        held_by = self.grants + self.writers
        if op.outcome == "fail":
            self.lost(owner)
        elif op.outcome == "ok" or owner in held_by:
            need(owner in held_by)
            (self.grants if owner in self.grants else self.writers).remove(owner)

    def renew(self, op: Op, owner: str) -> None:
        if op.outcome == "ok":
            need(owner in self.grants + self.writers)
        elif op.outcome == "fail":
            self.lost(owner)

    def lost(self, owner: str) -> None:
        """Accept that the owner was told LockLost; a lease ends before only if it is fenced."""
        need(self.is_fenced or owner not in self.grants + self.writers)
        self.grants = [one for one in self.grants if one != owner]


@dataclass
class Shelf:
    """Units, and what the orders did with them."""

    units: int = 3
    bought: dict[tuple[int, str], int] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)

    def apply(self, op: Op) -> None:
        """Do what the operation does, and compare its outcome."""
        if op.do == "buy":
            self.buy(op)
        elif op.outcome != "fail":
            need(op.fields["order"] in self.pending)
            units = self.pending.pop(op.fields["order"])
            self.units += units if op.do == "cancel" else 0

    def buy(self, op: Op) -> None:
        key, quantity = (op.fields["user"], op.fields["key"]), op.fields["quantity"]
        if op.outcome == "fail":
            if op.fields["error"] == "SoldOut":
                need(self.units < quantity)
        elif op.fields.get("replayed"):
            need(key in self.bought)
        else:
            need(key not in self.bought and self.units >= quantity)
            self.units -= quantity
            self.bought[key] = quantity
            self.pending[f"order {key[1]}"] = quantity  # the generator's names, known or not


OBJECTS: dict[str, Callable[[], Lock | Shelf]] = {
    "mutex": Lock,
    "reentrant": lambda: Lock(is_reentrant=True),
    "fenced": lambda: Lock(is_fenced=True),
    "reentrant-fenced": lambda: Lock(is_reentrant=True, is_fenced=True),
    "semaphore": lambda: Lock(most=2),
    "read-write": lambda: Lock(most=NEVER, has_writers=True),
    "stock": Shelf,
}


def is_legal(model: str, ops: list[Op]) -> bool:
    """Return True if some order of the operations explains all outcomes."""
    return _explain(OBJECTS[model](), ops)


def _explain(thing: Lock | Shelf, left: list[Op]) -> bool:
    if all(op.outcome == "unknown" for op in left):
        return True
    first_return = min(op.returned for op in left)
    for number, op in enumerate(left):
        if op.called > first_return:
            continue  # another one has ended before it began
        after = copy.deepcopy(thing)
        try:
            after.apply(op)
        except Impossible:
            continue
        if _explain(after, left[:number] + left[number + 1 :]):
            return True
    return False


def events_of(ops: list[Op]) -> list[dict[str, Any]]:
    """Return the lines that `Recorder` would have written."""
    events = []
    for id, op in enumerate(ops):
        head = {"actor": op.actor, "do": op.do, "id": id}
        asked = without_results(op)
        events.append({**head, "t": op.called, "type": "invoke", **asked})
        if op.returned < NEVER:
            events.append({**head, "t": op.returned, "type": op.outcome, **op.fields})
    return sorted(events, key=lambda event: (event["t"], event["type"] != "invoke"))


def without_results(op: Op) -> dict[str, Any]:
    """Return the arguments of the operation."""
    results = {"token", "replayed", "error"} | ({"order"} if op.do == "buy" else set())
    return {name: value for name, value in op.fields.items() if name not in results}


def random_history(model: str, rng: random.Random) -> list[Op]:
    """Return at most eight operations of up to four actors, legal by construction."""
    thing = OBJECTS[model]()
    actors = [f"actor {number}" for number in range(rng.randint(2, 4))]
    ops: list[Op] = []
    count = rng.randint(3, 8)
    while len(ops) < count:
        op, after = _any(model, thing, rng, rng.choice(actors)), copy.deepcopy(thing)
        if rng.random() < 0.2:
            op.outcome, op.fields = "unknown", without_results(op)
        if op.outcome != "unknown" or rng.random() < 0.5:  # else it never happened
            try:
                after.apply(op)
            except Impossible:
                continue
            thing = after
        ops.append(op)
    _stretch(ops, rng)
    return ops


def _any(model: str, thing: Lock | Shelf, rng: random.Random, actor: str) -> Op:
    outcome = rng.choice(["ok", "ok", "fail"])
    if isinstance(thing, Shelf):
        if thing.pending and rng.random() < 0.3:
            order = {"order": rng.choice([*thing.pending])}
            return Op(actor, rng.choice(["pay", "cancel"]), order)
        fields: dict[str, Any] = {"user": 1, "key": rng.choice("abcdefgh")}
        fields["quantity"] = rng.randint(1, 2)
        if outcome == "fail":
            fields["error"] = rng.choice(["SoldOut", "LimitReached"])
        elif (1, fields["key"]) in thing.bought:
            fields |= {"replayed": True, "order": f"order {fields['key']}"}
        else:
            fields["order"] = f"order {fields['key']}"
        return Op(actor, "buy", fields, outcome)
    do = rng.choice(["acquire", "acquire", "release", "release", "renew"])
    owner = actor if rng.random() < 0.9 else "actor 0"
    lock: dict[str, Any] = {"name": "lock", "owner": owner}
    if outcome == "fail":
        lock["error"] = "LockLost"
    if do == "acquire":
        lock |= {"backend": "redis", "mode": rng.choice(["read", "write"])}
        if model != "read-write":
            del lock["mode"]
        if outcome == "ok":
            lock["token"] = thing.top + rng.choice([0, 1, 1, 2]) if thing.is_fenced else 0
    return Op(actor, do, lock, outcome)


def _stretch(ops: list[Op], rng: random.Random) -> None:
    """Give each operation a call before its instant and a return after it."""
    for place, op in enumerate(ops):
        instant = 100 * (place + 1)
        op.called = max(0, instant - rng.choice([5, 50, 150, 300]))
        op.returned = instant + rng.choice([5, 50, 150, 300])
        if op.outcome == "unknown":
            op.returned = NEVER


def mutated(ops: list[Op], rng: random.Random) -> list[Op]:
    """Return a copy in which operations take a value of another, fail, or are dropped."""
    ops = copy.deepcopy(ops)
    for _ in range(rng.randint(1, 2)):
        op, other, what = rng.choice(ops), rng.choice(ops), rng.random()
        shared = sorted((op.fields.keys() & other.fields.keys()) - {"name", "backend"})
        if what < 0.2 and len(ops) > 2:
            ops.remove(op)
        elif what < 0.5 and op.outcome == "ok" and op.do in ("release", "renew", "buy"):
            error = "SoldOut" if op.do == "buy" else "LockLost"
            op.outcome, op.fields = "fail", {**without_results(op), "error": error}
        elif what < 0.6 and "token" in op.fields:
            op.fields["token"] = max(0, op.fields["token"] - 1)
        elif shared:
            name = rng.choice(shared)
            op.fields[name] = other.fields[name]
    for op in ops:
        if op.do == "buy" and "order" in op.fields:  # one order for each key, as in `Shelf`
            op.fields["order"] = f"order {op.fields['key']}"
    return ops


def histories(model: str, count: int, seed: int) -> Iterator[tuple[list[Op], bool]]:
    """Yield `count` histories with the verdict of this module, half of them illegal."""
    rng = random.Random(f"{model} {seed}")
    wanted = {True: count - count // 2, False: count // 2}
    while any(wanted.values()):
        ops = random_history(model, rng)
        if not wanted[True] or (wanted[False] and rng.random() < 0.7):
            ops = mutated(ops, rng)
        told = {op.fields["order"] for op in ops if op.do == "buy" and "order" in op.fields}
        if any(op.fields["order"] not in told for op in ops if op.do in ("pay", "cancel")):
            continue  # whose order that is, nothing tells
        verdict = is_legal(model, ops)
        if wanted[verdict]:
            wanted[verdict] -= 1
            yield ops, verdict
