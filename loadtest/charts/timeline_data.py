"""The recorded events of one variant of a scenario, as the lanes of a timeline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from loadtest.kernel import judges
from loadtest.kernel.history import SECOND, Event
from loadtest.kernel.holds import Lease, holds, leases, overlaps

SAME = SECOND // 500
"""Nanoseconds within which a wait or an overlap does not count."""
WATCHDOG, WAITER = "watchdog of ", "waiter "
NONE_LEFT = gettext_noop("no unit left")
# Events are recorded in English; makemessages finds their texts here.
_RECORDED = (
    *(gettext_noop("buyer A"), gettext_noop("buyer B"), gettext_noop("buyer C")),
    *(gettext_noop("buyer D"), gettext_noop("holder"), gettext_noop("staff")),
    *(gettext_noop("master"), gettext_noop("replica"), gettext_noop("database")),
    *(gettext_noop("paused"), gettext_noop("GIL held"), gettext_noop("works")),
    *(gettext_noop("killed"), gettext_noop("down"), gettext_noop("clock jumps")),
    *(gettext_noop("replication cut"), gettext_noop("promoted")),
    *(gettext_noop("force"), gettext_noop("drain")),
    *(gettext_noop("masters 4, 5"), gettext_noop("master 3")),
    *(gettext_noop("masters 1-3"), gettext_noop("master 1 of 5")),
    *(gettext_noop("pays"), gettext_noop("consumer"), gettext_noop("consumer 2")),
    gettext_noop("other buyers"),
)


class Span(NamedTuple):
    """A period in nanoseconds."""

    begin: int
    end: int
    what: str = ""


class StockWrite(NamedTuple):
    """A write to the stock row: the quantity before and after, None if it is not recorded."""

    at: int
    before: int | None
    after: int | None
    sold: int
    """The units sold by then."""
    initial: int
    uncounted: int
    """The units that were sold since the writer's read: its write does not count them."""
    refused: str | None = None
    """Why the row refused it: "#2 > #1", the tokens of row and writer, or "2 > 1", their epochs if
    these differ; NONE_LEFT, or "" if it had changed."""

    @property
    def is_bad(self) -> bool:
        """True for a write that was refused, or that should have been."""
        return bool(self.uncounted) or self.refused is not None or self.sold > self.initial


@dataclass
class Lane:
    """The events of one process or server."""

    name: str
    beliefs: list[Span] = field(default_factory=list)
    waits: list[Span] = field(default_factory=list)
    faults: list[Span] = field(default_factory=list)
    marks: list[tuple[int, str, str]] = field(default_factory=list)
    """The time, sign and label of each mark; a value follows | in the label."""


def own(recorded: Sequence[Event]) -> list[Event]:
    """Return the events without those of other locks.

    A form that is sent twice also holds a lock in its own name. A lease whose owner released it
    early counts as lost in the end, which tells nothing: that event is left out, too.
    """
    guard = next((e["name"] for e in recorded if e["do"] == "acquire"), None)
    freed: set[str] = set()
    found = []
    for event in recorded:
        is_other = event.get("name", guard) != guard
        if is_other or (event["do"] == "lost" and event["owner"] in freed):
            continue
        if (event["do"], event.get("type")) == ("release", "ok"):
            freed.add(event["owner"])
        found.append(event)
    return found


def lane_title(name: str) -> str:
    """Return the name of a lane in the active language."""
    if name.startswith(WATCHDOG):
        return _("the watchdog of %(actor)s") % {"actor": _(name.removeprefix(WATCHDOG))}
    if name.startswith(WAITER):
        return _("waiter %(number)s") % {"number": name.removeprefix(WAITER)}
    return _(name)


def translate(label: str) -> str:
    """Return a recorded label in the active language; a value follows | in the label."""
    text, _bar, value = label.partition("|")
    if not value:
        return _(text)
    # Words are translated, the replies of Redis are not.
    return _(text) % {"value": value if value.isupper() else _(value)}


def short_tokens(events: Sequence[Event]) -> dict[int, str]:
    """Return "#1", "#2" ... for the tokens, which may have 19 digits, in the order of fences."""
    in_order = dict.fromkeys(token for _epoch, token in sorted(one.fence for one in holds(events)))
    return {token: f"#{n}" for n, token in enumerate(in_order, 1)}


class TimelineData:
    """The lanes in the order of their first event, the overlaps and the writes to the stock."""

    def __init__(self, variant: Mapping[str, Any]) -> None:
        """Read the `events` of a variant.

        `stock` are the units of the sale, if the events begin in the middle of it. `has_fences`
        says if the lock has fences, by default if a reader of the stock row had one.
        """
        self.events = own(variant["events"])
        drawn = [e["t"] for e in self.events if e["do"] != "renew"] or [0, 1]
        self.begin: int = drawn[0]
        self.end: int = drawn[-1]
        self.lanes: dict[str, Lane] = {}
        self.stock: list[StockWrite] = []
        self.has_lock = any(e.get("backend", "none") != "none" for e in self.events)
        """False if every buyer goes on at once."""
        grants = holds(self.events)
        self.overlaps = [
            Span(b.begin, min(self.end, b.begin + both))
            for _a, b, both in overlaps(grants, "believed")
            if both > SAME
        ]
        self._released = {one.owner: one.release for one in grants}
        reads = [e for e in self.events if e["do"] == "read"]
        self._tokens = short_tokens(self.events)
        has_fences = variant.get("has_fences", any(e.get("token") in self._tokens for e in reads))
        found = leases(self.events, self.end)
        self.leases = found if has_fences else [one._replace(fence=(0, 0)) for one in found]
        self._is_fenced = any(e.get("error") == "StaleFence" for e in self.events)
        self._last_read: dict[str, Event] = {}
        """How each actor read the stock row."""
        self._claims: dict[str, str] = {}
        """The short token with which each actor wants to write."""
        self._epochs: dict[str, int] = {}
        """Its epoch."""
        self._quantity = next((e["quantity"] for e in reads), None)
        """The stock row. The first read shows what it was: nothing had been written yet."""
        self._initial = variant.get("stock") or self._quantity or 0
        self._sold = self._initial - (self._quantity or 0)
        self._asked: dict[str, tuple[str, int]] = {}
        self._faults: dict[tuple[str, str], int] = {}
        for event in self.events:
            self._add(event)
        for (name, what), at in self._faults.items():
            self._mark(name, at, "kill", what)
        for one in grants:
            self.lane(one.actor).beliefs.append(Span(one.begin, min(one.believed, self.end)))

    def lane(self, name: str) -> Lane:
        """Return the lane of this name; create it if there is none."""
        return self.lanes.setdefault(name, Lane(name))

    def lane_of(self, event: Event) -> str:
        """Return the lane of an event.

        The watchdog notices a loss in a thread of its own, while the buyer still writes.
        """
        name: str = event.get("lane") or event["actor"]
        released = self._released.get(event.get("owner", ""))
        is_early = event["do"] == "lost" and not (released and released <= event["t"])
        return WATCHDOG + name if is_early or event["do"] == "renew" else name

    def token_of(self, lease: Lease) -> str:
        """Return "#1", "#2" ..., or nothing for a key without a fence."""
        return self._tokens.get(lease.fence[1], "") if lease.fence != (0, 0) else ""

    def claim_of(self, read: Event) -> str:
        """Return the short token that a reader has for its write, if the lock gave it one."""
        return self._tokens.get(read.get("token", 0), "")

    def has_released(self, release: Event) -> bool:
        """Return whether the owner has released the lock before this release."""
        return any(
            one["owner"] == release["owner"] and one["t"] < release["t"]
            for one in self.events
            if (one["do"], one.get("type")) == ("release", "ok")
        )

    def is_check(self, grant: Event) -> bool:
        """Return whether a buyer whose write was refused only looks at the token of a new grant.

        The next grant is for its next try: see `shop.sales.stock_lock.learn_newer_fence`.
        """
        mine = [one for one in self.events if one["actor"] == grant["actor"]]
        at = mine.index(grant)
        last = next((one for one in mine[at::-1] if one["do"] in ("read", "write")), grant)
        then = next((one for one in mine[at:] if one["do"] in ("read", "release")), grant)
        return last.get("error") == "StaleFence" and then["do"] == "release"

    def contradictions(self) -> list[str]:
        """Return what no store can have done, in sentences; see `judges.contradictions`."""
        return list(judges.contradictions(self.leases))

    def _mark(self, lane: str, at: int, sign: str, label: str = "", value: object = None) -> None:
        label = label if value is None else f"{label}|{value}"
        self.lane(lane).marks.append((at, sign, label))

    def _add(self, event: Event) -> None:
        at, name = event["t"], self.lane_of(event)
        match event["do"], event.get("type"):
            case "acquire", "invoke":
                self.lane(name)
                self._asked[event["owner"]] = name, at
            case "acquire", kind:
                _name, began = self._asked.pop(event["owner"], (name, at))
                if at - began > SAME:
                    self.lane(name).waits.append(Span(began, at))
                    if kind != "ok":
                        self._mark(name, at, "no", gettext_noop("gives up"))
            case "lost", _ if event["owner"] in self._released:
                self._mark(name, at, "no", gettext_noop("notices the lock is lost"))
            case "read", "ok":
                self._claims[name] = claim = self.claim_of(event)
                self._epochs[name] = event.get("epoch", 0)
                if (quantity := event["quantity"]) is not None:
                    self._last_read[name] = event
                    shown = f"{quantity} · {claim}" if claim and self._is_fenced else quantity
                    self._mark(name, at, "read", gettext_noop("reads %(value)s"), shown)
            case "write", "ok":
                left = event.get("quantity")
                label = "" if left is None else gettext_noop("writes %(value)s")
                self._mark(name, at, "good", label, left)
                self._write(at, name, left)
            case "write", "fail":
                self._mark(name, at, "bad", gettext_noop("refused"))
                offered = self._claims.get(name, "")
                stored = max(self._claims.values(), key=lambda one: int(one[1:] or 0), default="")
                # A row without a newer token refuses because it has changed since it was read.
                why = f"{stored} > {offered}" if offered and offered != stored else ""
                if why and (newer := max(self._epochs.values())) > self._epochs[name]:
                    why = f"{newer} > {self._epochs[name]}"
                why = NONE_LEFT if event.get("error") == "OutOfStock" else why
                self._write(at, name, None, why)
            case "buy", "ok" if event.get("replayed"):
                self._mark(name, at, "mark", gettext_noop("same order"))
            case "buy", "fail" if event["error"] == "SoldOut":
                self._mark(name, at, "no", gettext_noop("sold out"))
            case "buy", "unknown" if event["error"] in ("Overloaded", "ServiceUnavailable"):
                before = self.lane(name).marks[-1:]
                if not before or before[0][2] != "gives up" or at - before[0][0] > SECOND // 10:
                    self._mark(name, at, "no", gettext_noop("busy"))
            case "fault", "start":
                self._faults[name, event["what"]] = at
                self.lane(name)
                for owner, (who, began) in [*self._asked.items()]:
                    if who == event.get("target"):
                        self.lane(who).waits.append(Span(began, at))
                        del self._asked[owner]
            case "fault", "end":
                begin = self._faults.pop((name, event["what"]))
                self.lane(name).faults.append(Span(begin, at, event["what"]))
            case "deleted", _:
                label = gettext_noop("DEL removes the key of %(value)s")
                self._mark(name, at, "mark", label, event["holder"])
            case "step", _:
                self._mark(name, at, event.get("sign", "mark"), event["what"], event.get("value"))
            case (("mark" | "wake" | "poll") as sign, _):
                self._mark(name, at, sign, event.get("what", ""))

    def _write(self, at: int, actor: str, left: int | None, refused: str | None = None) -> None:
        last, before = self.stock[-1:], self._quantity
        known = self._last_read.get(actor, {}).get("quantity")
        units = 0 if refused is not None else known - left if known and left is not None else 1
        sold = units + (last[0].sold if last else self._sold)
        uncounted = 0 if left is None else (known or 0) - (before or 0)
        after = before if refused is not None else left
        write = StockWrite(at, before, after, sold, self._initial or sold, uncounted, refused)
        self.stock.append(write)
        self._quantity = after
