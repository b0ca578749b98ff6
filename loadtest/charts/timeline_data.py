"""The recorded events of one variant of a scenario, as the lanes of a timeline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from loadtest.kernel.history import Event

SECOND = 1_000_000_000
SAME = SECOND // 500
"""Nanoseconds within which a wait or an overlap does not count."""
WATCHDOG, WAITER = "watchdog of ", "waiter "
IN_PROCESS = ("none", "process")
"""Locks without a common store: each process grants its own."""
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
)


class Span(NamedTuple):
    """A period in nanoseconds."""

    begin: int
    end: int
    what: str = ""


class Lease(NamedTuple):
    """A key in a store, until it was released, deleted or lost there, or expired."""

    begin: int
    end: int
    store: str
    holder: str
    token: str
    """"#1", "#2" ..., or nothing for a key without a fence."""
    how: str
    """"released", "expired", "deleted" or "lost"; "stays" without an expiry; "" if still held."""


class StockWrite(NamedTuple):
    """A write to the stock row: the quantity before and after, None if it is not recorded."""

    at: int
    before: int | None
    after: int | None
    sold: int
    """The units sold by then."""
    initial: int
    is_lost: bool
    """True if the writer had read another quantity: its write does not count the other's sale."""
    rejected: str | None = None
    """The tokens of row and writer if the row rejected it, "" if another write had changed it."""

    @property
    def is_bad(self) -> bool:
        """True for a write that was rejected, or that should have been."""
        return self.is_lost or self.rejected is not None or self.sold > self.initial


@dataclass
class Lane:
    """The events of one process or server."""

    name: str
    beliefs: list[Span] = field(default_factory=list)
    waits: list[Span] = field(default_factory=list)
    faults: list[Span] = field(default_factory=list)
    marks: list[tuple[int, str, str]] = field(default_factory=list)
    """The time, sign and label of each mark; a value follows | in the label."""


@dataclass
class TimelineData:
    """The lanes in the order of their first event, the overlaps and the writes to the stock."""

    begin: int
    end: int
    lanes: dict[str, Lane] = field(default_factory=dict)
    overlaps: list[Span] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    stock: list[StockWrite] = field(default_factory=list)

    def lane(self, name: str) -> Lane:
        """Return the lane of this name; create it if there is none."""
        return self.lanes.setdefault(name, Lane(name))

    def contradictions(self) -> list[str]:
        """Return a sentence for each lease that began before an earlier one in its store ended."""
        found = []
        last: dict[str, Lease] = {}
        for lease in sorted(self.leases):
            before = last.get(lease.store, lease)
            if before.end > lease.begin and before is not lease:
                seconds = (before.end - lease.begin) / SECOND
                holders = f"{before.holder} and {lease.holder}"
                found.append(f"{lease.store}: {holders} have leases for {seconds:.3f} s")
            last[lease.store] = max(before, lease, key=lambda one: one.end)
        return found


@dataclass
class _Hold:
    actor: str
    store: str
    begin: int
    deadline: int | None
    token: str
    believed: int | None = None
    """The end of the belief: the request to release, or the holder's death."""
    ended: int | None = None
    """When the store had no such lease any more."""
    how: str = "released"
    is_releasing: bool = False
    is_dead: bool = False


def read(variant: Mapping[str, Any]) -> TimelineData:
    """Return the timeline data of a variant."""
    return _Reader(variant["events"]).read()


def own(recorded: Sequence[Event]) -> list[Event]:
    """Return the events without those of other locks.

    A form that is sent twice also holds a lock in its own name.
    """
    guard = next((e["name"] for e in recorded if e["do"] == "acquire"), None)
    return [e for e in recorded if e.get("name", guard) == guard]


def lane_title(name: str) -> str:
    """Return the name of a lane in the active language."""
    if name.startswith(WATCHDOG):
        return _("watchdog of %(actor)s") % {"actor": _(name.removeprefix(WATCHDOG))}
    if name.startswith(WAITER):
        return _("waiter %(number)s") % {"number": name.removeprefix(WAITER)}
    return _(name)


def short_tokens(events: Sequence[Event]) -> dict[int, str]:
    """Return "#1", "#2" ... for the tokens, which may have 19 digits, in the order of fences."""
    tokens = {e["token"] for e in events if e["do"] == "acquire" and e.get("token") is not None}
    epochs = {e["token"]: e["epoch"] for e in events if "epoch" in e}
    in_order = sorted(tokens, key=lambda token: (epochs.get(token, 0), token))
    return {token: f"#{n}" for n, token in enumerate(in_order, 1)}


class _Reader:
    def __init__(self, recorded: Sequence[Event]) -> None:
        self.events = own(recorded)
        drawn = [e["t"] for e in self.events if e["do"] != "renew"] or [0, 1]
        self.data = TimelineData(drawn[0], drawn[-1])
        self.store = next((e["backend"] for e in recorded if "backend" in e), "")
        self.tokens = short_tokens(self.events)
        self.is_fenced = any(e.get("error") == "StaleFence" for e in self.events)
        self.held: dict[str, _Hold] = {}
        self.asked: dict[tuple[str, str], int] = {}
        self.faults: dict[tuple[str, str], int] = {}
        self.last_read: dict[str, Event] = {}
        """How each actor read the stock row."""
        reads = [e for e in self.events if e["do"] == "read"]
        self.has_fences = any(e.get("token") in self.tokens for e in reads)
        self.quantity = self.initial = next((e["quantity"] for e in reads), None)
        """The stock row. The first read shows what it was: nothing had been written yet."""

    def read(self) -> TimelineData:
        for event in self.events:
            match event["do"]:
                case "acquire" | "release" | "renew" | "lost":
                    self._add_lock_event(event)
                case "read" | "write" | "buy":
                    self._add_purchase_event(event)
                case _:
                    self._add_lab_event(event)
        for (name, what), begin in self.faults.items():
            self._mark(name, begin, "kill", what)
        for hold in self.held.values():
            lane, end = self.data.lane(hold.actor), self.data.end
            lane.beliefs.append(Span(hold.begin, end if hold.believed is None else hold.believed))
            if hold.store.partition(" ")[0] != "none":  # which stores nothing
                self.data.leases.append(self._lease(hold, end))
        self._find_overlaps()
        return self.data

    def _lease(self, hold: _Hold, end: int) -> Lease:
        """Return the lease of a hold, up to the first thing that ended it."""
        stays = "stays" if hold.is_dead and hold.deadline is None else ""
        ends = [(hold.ended, hold.how), (hold.deadline, "expired"), (end, stays)]
        at, how = min((at, how) for at, how in ends if at is not None)
        token = hold.token if self.has_fences else ""
        return Lease(hold.begin, max(hold.begin, at), hold.store, hold.actor, token, how)

    def _mark(self, lane: str, at: int, sign: str, label: str = "") -> None:
        self.data.lane(lane).marks.append((at, sign, label))

    def _add_lock_event(self, event: Event) -> None:
        at, actor, owner = event["t"], event["actor"], event["owner"]
        request, hold = (owner, actor), self.held.get(owner)
        match event["do"], event.get("type"):
            case "acquire", "invoke":
                self.data.lane(actor)
                self.asked[request] = at
            case "acquire", kind:
                began = self.asked.pop(request, at)
                if at - began > SAME:
                    self.data.lane(actor).waits.append(Span(began, at))
                if kind == "ok":
                    self._grant(event, began)
                elif at - began > SAME:
                    self._mark(actor, at, "no", gettext_noop("gives up"))
            case "renew", "ok" if hold:
                hold.deadline = event["deadline"]
            case "release", "invoke" if hold:
                hold.believed, hold.is_releasing = hold.believed or at, True
            case "release", ("ok" | "fail") if hold:
                hold.ended = hold.ended or at
            case "lost", _ if hold:
                # The watchdog notices it in a thread of its own, while the buyer still writes.
                lane = actor if hold.is_releasing else WATCHDOG + actor
                self._mark(lane, at, "no", gettext_noop("notices the lock is lost"))

    def _grant(self, event: Event, asked: int) -> None:
        at, store = event["t"], event.get("backend", self.store)
        if store in IN_PROCESS:
            store = f"{store} of {event['actor']}"
        for other in self.held.values():
            if other.store != store:
                continue
            if other.is_releasing:
                # A release takes effect before its reply, at the latest with the next grant.
                other.ended = other.ended or at
            elif other.is_dead and other.deadline and asked < other.deadline < at:
                # The store ends a session later than its client expects: the waiter still waited.
                other.deadline = at
        token = self.tokens.get(event["token"], "")
        self.held[event["owner"]] = _Hold(event["actor"], store, at, event["deadline"], token)

    def _add_purchase_event(self, event: Event) -> None:
        at, actor = event["t"], event["actor"]
        match event["do"], event["type"]:
            case "read", "ok" if event["quantity"] is not None:
                self.last_read[actor] = event
                label = gettext_noop("reads %(value)s") + f"|{event['quantity']}"
                if self.is_fenced and event.get("token") in self.tokens:
                    label += f" · {self.tokens[event['token']]}"
                self._mark(actor, at, "read", label)
            case "write", "ok":
                label = gettext_noop("writes %(value)s")
                left = event.get("quantity")
                self._mark(actor, at, "good", "" if left is None else f"{label}|{left}")
                self._write(at, actor, left)
            case "write", "fail":
                self._mark(actor, at, "bad", gettext_noop("rejected"))
                claimed = {who: read.get("token") or 0 for who, read in self.last_read.items()}
                offered, stored = claimed.get(actor, 0), max(claimed.values(), default=0)
                # A row without a newer token refuses because it has changed since it was read.
                tokens = [self.tokens.get(token, "") for token in (stored, offered)]
                self._write(at, actor, None, " > ".join(tokens) if offered < stored else "")
            case "buy", "fail" if event["error"] == "SoldOut":
                self._mark(actor, at, "no", gettext_noop("sold out"))
            case "buy", "unknown" if event["error"] in ("Overloaded", "ServiceUnavailable"):
                before = self.data.lane(actor).marks[-1:]
                if not before or before[0][2] != "gives up" or at - before[0][0] > SECOND // 10:
                    self._mark(actor, at, "no", gettext_noop("busy"))

    def _write(self, at: int, actor: str, left: int | None, rejected: str | None = None) -> None:
        last, before = self.data.stock[-1:], self.quantity
        known = self.last_read.get(actor, {}).get("quantity")
        units = 0 if rejected is not None else known - left if known and left is not None else 1
        sold = units + (last[0].sold if last else 0)
        is_lost = left is not None and known != before
        after = before if rejected is not None else left
        write = StockWrite(at, before, after, sold, self.initial or sold, is_lost, rejected)
        self.data.stock.append(write)
        self.quantity = after

    def _add_lab_event(self, event: Event) -> None:
        at, name = event["t"], event["lane"]
        match event["do"], event.get("type"):
            case "fault", "start":
                self.faults[name, event["what"]] = at
                self.data.lane(name)
                self._stop(event.get("target"), at)
            case "fault", "end":
                begin = self.faults.pop((name, event["what"]))
                self.data.lane(name).faults.append(Span(begin, at, event["what"]))
            case "gone", _:
                self._end_lease(name, at, "lost")
            case "deleted", _:
                self._end_lease(event["holder"], at, "deleted")
                label = gettext_noop("DEL removes the key of %(value)s")
                self._mark(name, at, "mark", f"{label}|{event['holder']}")
            case "kept", _:
                since = self.faults.get((name, "killed")) or at
                kept = Lease(since, self.data.end, self.store, name, "", "stays")
                self.data.leases.append(kept)
            case "mark", _:
                self._mark(name, at, "mark", event["what"])
            case (("wake" | "poll"), _):
                self._mark(name, at, event["do"])

    def _stop(self, target: str | None, at: int) -> None:
        """End the waits and beliefs of a process that was killed."""
        for request in [one for one in self.asked if one[1] == target]:
            self.data.lane(request[1]).waits.append(Span(self.asked.pop(request), at))
        for hold in self.held.values():
            if hold.actor == target:
                hold.believed, hold.is_dead = hold.believed or at, True

    def _end_lease(self, holder: str, at: int, how: str) -> None:
        for hold in self.held.values():
            if hold.actor == holder and hold.ended is None:
                hold.ended, hold.how = at, how

    def _find_overlaps(self) -> None:
        last: Span | None = None
        for span in sorted(b for lane in self.data.lanes.values() for b in lane.beliefs):
            if last is not None and last.end - span.begin > SAME:
                self.data.overlaps.append(Span(span.begin, min(last.end, span.end)))
            if last is None or span.end > last.end:
                last = span
