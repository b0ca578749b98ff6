"""Who held which lock: the grants of a history, and the keys that stores kept for them.

grants = holds(events)       # in order; each until its release, its loss or its process's death
overlaps(grants)             # two holders of one name, by their leases
overlaps(grants, end="believed")  # by what the processes thought
leases(events, end)          # the same from the stores' side, as a timeline draws it
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loadtest.kernel.history import Event

IN_PROCESS = ("none", "process")
"""Locks without a common store: each process grants its own."""


@dataclass(slots=True, kw_only=True)
class Hold:
    """A grant. Times are monotonic nanoseconds; None: that did not happen."""

    name: str
    owner: str
    backend: str
    actor: str
    token: int
    epoch: int
    """That of the lock policy, 0 if it is unknown."""
    asked: int
    begin: int
    deadline: int | None
    """The end of the lease, as its holder last knew it; None: the lease has none."""
    release: int | None = None
    """The request to release it."""
    freed: int | None = None
    """The reply to that request."""
    lost: int | None = None
    """When the process noticed that it had lost the lock."""
    killed: int | None = None
    removed: tuple[int, str] | None = None
    """When the store lost the key or a foreign release deleted it, and which of them."""
    last: int = 0
    """The end of the history."""

    @property
    def fence(self) -> tuple[int, int]:
        """The epoch and the token, by which the grants of a lock are ordered."""
        return self.epoch, self.token

    @property
    def store(self) -> str:
        """The store that granted it: that of the backend, or the memory of one process."""
        return f"{self.backend} of {self.actor}" if self.backend in IN_PROCESS else self.backend

    @property
    def believed(self) -> int:
        """The end of the time in which the process acted as the holder."""
        ends = [at for at in (self.release, self.killed) if at is not None]
        # A process whose watchdog has noticed the loss may still write before its release.
        return min(ends) if ends else self.lost or self.last

    @property
    def end(self) -> int:
        """The end of the lease, by what its holder knew."""
        lost = self.believed if self.lost is None else min(self.lost, self.believed)
        return lost if self.deadline is None else min(lost, max(self.deadline, self.begin))


def holds(events: Sequence[Event]) -> list[Hold]:
    """Return all grants, in the order in which their holders received them."""
    asked: dict[tuple[str, str], int] = {}
    by_owner: dict[str, list[Hold]] = defaultdict(list)
    by_actor: dict[str, list[Hold]] = defaultdict(list)
    found: list[Hold] = []
    dead: set[str] = set()  # a kill is recorded just before it: one of these may still get a lock
    for event in events:
        at, actor, owner = event["t"], event["actor"], event.get("owner", "")
        mine = by_owner.get(owner, [])  # several if the owner has acquired again
        match event["do"], event.get("type"):
            case "acquire", "invoke":
                asked[owner, actor] = at
            case "acquire", "ok":
                fields = {name: event[name] for name in ("name", "owner", "token", "deadline")}
                fields |= {"backend": event.get("backend", ""), "epoch": event.get("epoch", 0)}
                fields |= {"asked": asked.pop((owner, actor), at), "begin": at}
                fields |= {"killed": at} if actor in dead else {}
                hold = Hold(actor=actor, last=events[-1]["t"] + 1, **fields)
                for line in (found, by_owner[owner], by_actor[actor]):
                    line.append(hold)
            case "renew", "ok":
                for hold in mine:
                    hold.deadline = event["deadline"]
            case "lost", _:
                for hold in mine:
                    hold.lost = hold.lost or at
            case "release", "invoke" if mine:
                mine[-1].release = mine[-1].release or at
            case "release", ("ok" | "fail") if mine:
                mine.pop().freed = at
            case "fault", "start" if "target" in event:
                dead.add(event["target"])
                for hold in by_actor.get(event["target"], []):
                    hold.killed = hold.killed or at
            case (("gone" | "deleted") as how, _):
                for hold in by_actor.get(str(event.get("holder", event["lane"])), []):
                    hold.removed = hold.removed or (at, "lost" if how == "gone" else how)
    return found


def overlaps(grants: Iterable[Hold], end: str = "end") -> list[tuple[Hold, Hold, int]]:
    """Return each overlap of a grant with the longest of the earlier grants of its name.

    `end` is "end", that of the lease, or "believed"; the last value is the length in nanoseconds.
    """
    longest: dict[str, Hold] = {}
    found = []
    for hold in grants:
        before, ends = longest.get(hold.name, hold), getattr(hold, end)
        both = min(getattr(before, end), ends) - hold.begin
        if both > 0 and before.owner != hold.owner:
            found.append((before, hold, both))
        if before is hold or ends > getattr(before, end):
            longest[hold.name] = hold
    return found


class Lease(NamedTuple):
    """A key in a store, until it was released, deleted or lost there, or expired."""

    begin: int
    end: int
    store: str
    holder: str
    fence: tuple[int, int]
    how: str
    """"released", "expired", "deleted" or "lost"; "stays" without an expiry; "" if still held."""


def leases(events: Sequence[Event], end: int) -> list[Lease]:
    """Return the keys that stores held for the grants of one name, until the time `end`."""
    grants = [hold for hold in holds(events) if hold.backend != "none"]  # which stores nothing
    backend = next((event["backend"] for event in events if "backend" in event), "")
    killed = {event["target"]: event["t"] for event in events if "target" in event}
    kept = [event["lane"] for event in events if event["do"] == "kept"]
    found = [Lease(killed.get(who, end), end, backend, who, (0, 0), "stays") for who in kept]
    for hold in grants:
        line = [one for one in grants if one.store == hold.store and one.begin > hold.begin]
        ends = [(end, "stays" if hold.killed and hold.deadline is None else "")]
        if hold.release is not None:
            # A release takes effect before its reply, at the latest with the next grant.
            times = [at for at in (hold.freed, *(one.begin for one in line)) if at is not None]
            ends += [(at, "released") for at in times if at >= hold.release]
        if (last := hold.deadline) is not None:
            # A store ends a dead process's session later than the process expected it to.
            waited = [one.begin for one in line if one.asked < last < one.begin]
            ends.append((waited[0] if hold.killed and waited else last, "expired"))
        if hold.removed is not None:
            ends.append(hold.removed)
        at, how = min(ends)
        found.append(
            Lease(hold.begin, max(hold.begin, at), hold.store, hold.actor, hold.fence, how)
        )
    return found
