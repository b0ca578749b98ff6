"""Sequential models of locks and of a stock, for `verification.histories.linearizability`.

An attempt to acquire that failed changed nothing, so it is left out. The models know no clock: that
a lease may end by itself is part of the fenced ones, which therefore judge tokens instead of
exclusion. Under the others a run in which a lease expired and was granted again is illegal.
"""

from collections import Counter
from collections.abc import Hashable, Iterable

from verification.histories.linearizability import BadHistory, Model, Operation

SOLD_OUT = ("SoldOut", "OutOfStock")

Held = tuple[int, tuple[str, ...], bool]
"""The newest token, the owners that hold the lock (each as often as it does), and if one writes."""


class Lock(Model):
    """A lock that at most `size` owners hold, or one alone whose acquire has `"mode": "write"`.

    A fenced lock may be granted again before its release, because a lease expires: the tokens must
    grow in the order of the grants, and an older owner can no longer renew or release.
    """

    initial: Held = (-1, (), False)

    def __init__(self, *, size: float = 1, reentrant: bool = False, fenced: bool = False) -> None:
        self.size, self.is_reentrant, self.is_fenced = size, reentrant, fenced

    def objects(self, operations: Iterable[Operation]) -> dict[str, list[Operation]]:
        """Return the operations by lock; where tokens count, also by backend."""
        kept = [one for one in operations if one.do in ("acquire", "release", "renew")]
        uses = Counter(one.event["owner"] for one in kept)
        grants = [one.event for one in kept if one.do == "acquire"]
        backends = {grant["owner"]: grant["backend"] for grant in grants}
        objects: dict[str, list[Operation]] = {}
        for one in kept:
            name, owner = one.event["name"], one.event["owner"]
            if one.outcome == "unknown" and (one.do == "renew" or uses[owner] == 1):
                continue  # whether it happened explains nothing
            if (one.do, one.outcome) != ("acquire", "fail"):
                backend = backends.get(owner) if self.is_fenced else ""
                objects.setdefault(f"{name} ({backend})" if backend else name, []).append(one)
        return objects

    def step(self, state: Held, operation: Operation) -> Held | None:
        """Return the state after acquire, renew or release."""
        (newest, held, is_writing), event = state, operation.event
        is_held = (owner := event["owner"]) in held
        if operation.do == "acquire":
            # An unknown grant has at least the next token.
            token = event.get("token", newest if is_held else newest + 1)
            if self.is_fenced and not (self.is_reentrant and is_held and token == newest):
                return (token, (owner,), False) if token > newest else None
            writes = event.get("mode") == "write"
            has_room = len(held) < self.size and not (held if writes else is_writing)
            fits = self.is_reentrant if is_held else has_room
            return (newest, tuple(sorted((*held, owner))), writes) if fits else None
        if not is_held:
            return state if operation.outcome == "fail" else None  # fail: LockLost
        if operation.outcome == "fail":
            return (newest, (), False) if self.is_fenced else None
        if operation.do == "renew":
            return state
        place = held.index(owner)
        return newest, held[:place] + held[place + 1 :], False

    def group(self, operation: Operation) -> tuple[Hashable, object]:
        """Return a common group for grants with tokens, which happen in the tokens' order."""
        if self.is_fenced and (operation.do, operation.outcome) == ("acquire", "ok"):
            return "grant", (operation.event["token"], operation.returned)
        return super().group(operation)

    def is_dead(self, state: Held, target: Operation, owners: Counter[str]) -> bool:
        """Return True if others hold the lock and cannot, or must not, give it up before."""
        (_, held, is_writing), owner = state, target.event["owner"]
        if owner in held or not (is_writing or len(held) >= self.size):
            return False
        if self.is_fenced:
            return target.do != "acquire" and target.outcome == "ok" and owners[owner] < 2
        return all(owners[holder] < 2 for holder in held)


Key = tuple[object, ...]
Units = tuple[int, frozenset[Key]]
"""The units left, and what later operations need: used keys, and orders that may be changed."""


class Stock(Model):
    """Units on sale: purchases with idempotency keys, payments and cancellations."""

    def __init__(self, *, units: int) -> None:
        self.initial: Units = (units, frozenset())
        self._repeated: set[Key] = set()
        self._changed: dict[Key, str] = {}
        """The orders that are paid or cancelled, by key."""

    def objects(self, operations: Iterable[Operation]) -> dict[str, list[Operation]]:
        """Return the operations that take or return units, or show that too few are left."""
        kept = [
            one
            for one in operations
            if one.do in ("buy", "pay", "cancel")
            and (one.outcome != "fail" or one.event["error"] in SOLD_OUT)
        ]
        buys = [one for one in kept if one.do == "buy" and one.outcome != "fail"]
        uses = Counter(map(_key, buys))
        self._repeated = {_key(one) for one in buys if one.event.get("replayed")}
        self._repeated |= {key for key, times in uses.items() if times > 1}
        sold = {one.event["order"]: _key(one) for one in buys if one.outcome == "ok"}
        changed = {one.event["order"] for one in kept if one.do != "buy"}
        if missing := sorted(changed - sold.keys()):
            raise BadHistory(f"no purchase returned order {missing[0]}, which was changed")
        self._changed = {sold[order]: order for order in changed}
        return {"stock": kept} if kept else {}

    def step(self, state: Units, operation: Operation) -> Units | None:
        """Return the state after a purchase, a payment or a cancellation."""
        (left, facts), event = state, operation.event
        if operation.do != "buy":
            found = [fact for fact in facts if fact[:2] == ("pending", event["order"])]
            back = int(str(found[0][2])) if found and operation.do == "cancel" else 0
            return (left + back, facts - {found[0]}) if found else None
        quantity, key = event["quantity"], _key(operation)
        if operation.outcome == "fail":
            return state if left < quantity else None
        if event.get("replayed"):
            return state if key in facts else None
        if left < quantity or key in facts:
            return None
        facts |= {key} & self._repeated
        if key in self._changed:
            facts |= {("pending", self._changed[key], quantity)}
        return left - quantity, facts

    def group(self, operation: Operation) -> tuple[Hashable, object]:
        """Return a common group for purchases that differ only in the time of their return."""
        if operation.do != "buy" or _key(operation) in self._repeated | self._changed.keys():
            return super().group(operation)
        rank = operation.called if operation.outcome == "unknown" else operation.returned
        return (operation.outcome, operation.event["quantity"]), rank


def _key(operation: Operation) -> Key:
    return operation.event["user"], operation.event["key"]
