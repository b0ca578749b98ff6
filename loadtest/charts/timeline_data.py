"""The recorded events of one variant of a scenario, as the lanes of a timeline."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from loadtest.history.recorder import Event

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


@dataclass
class Lane:
    """The events of one process or server."""

    name: str
    beliefs: list[Span] = field(default_factory=list)
    leases: list[Span] = field(default_factory=list)
    """Each lease in its store, until it was released, deleted or lost there, or expired."""
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
    stock: list[tuple[int, int | str]] = field(default_factory=list)
    """The time of each write, and the units sold by then; for a rejected one, the tokens."""

    def lane(self, name: str) -> Lane:
        """Return the lane of this name; create it if there is none."""
        return self.lanes.setdefault(name, Lane(name))

    def leases(self) -> Iterator[tuple[Span, str]]:
        """Yield every lease and the name of its holder."""
        return ((lease, lane.name) for lane in self.lanes.values() for lease in lane.leases)

    def contradictions(self) -> list[str]:
        """Return a sentence for each lease that began before an earlier one in its store ended."""
        found = []
        last: dict[str, tuple[Span, str]] = {}
        for lease, holder in sorted(self.leases()):
            before, other = last.get(lease.what, (lease, holder))
            if before.end > lease.begin and before is not lease:
                seconds = (before.end - lease.begin) / SECOND
                found.append(f"{lease.what}: {other} and {holder} have leases for {seconds:.3f} s")
            last[lease.what] = max((before, other), (lease, holder), key=lambda one: one[0].end)
        return found


@dataclass
class _Hold:
    actor: str
    store: str
    begin: int
    deadline: int | None
    believed: int | None = None
    """The end of the belief: the request to release, or the holder's death."""
    ended: int | None = None
    """When the store had no such lease any more."""
    is_releasing: bool = False
    is_dead: bool = False


def read(variant: Mapping[str, Any]) -> TimelineData:
    """Return the timeline data of a variant."""
    return _Reader(variant["events"]).read()


def lane_title(name: str) -> str:
    """Return the name of a lane in the active language."""
    if name.startswith(WATCHDOG):
        return _("watchdog of %(actor)s") % {"actor": _(name.removeprefix(WATCHDOG))}
    if name.startswith(WAITER):
        return _("waiter %(number)s") % {"number": name.removeprefix(WAITER)}
    return _(name)


def short_tokens(events: Sequence[Event]) -> dict[int, str]:
    """Return "#1", "#2" ... for the tokens, which may have 19 digits, in their order."""
    tokens = {e["token"] for e in events if e["do"] == "acquire" and e.get("token") is not None}
    return {token: f"#{n}" for n, token in enumerate(sorted(tokens), 1)}


class _Reader:
    def __init__(self, recorded: Sequence[Event]) -> None:
        guard = next((e["name"] for e in recorded if e["do"] == "acquire"), None)
        # Other locks are left out: a form that is sent twice also holds one in its own name.
        self.events = [e for e in recorded if e.get("name", guard) == guard]
        drawn = [e["t"] for e in self.events if e["do"] != "renew"] or [0, 1]
        self.data = TimelineData(drawn[0], drawn[-1])
        self.store = next((e["backend"] for e in recorded if "backend" in e), "")
        self.tokens = short_tokens(self.events)
        self.is_fenced = any(e.get("error") == "StaleFence" for e in self.events)
        self.held: dict[str, _Hold] = {}
        self.asked: dict[tuple[str, str], int] = {}
        self.faults: dict[tuple[str, str], int] = {}
        self.claimed: dict[str, int] = {}
        """The token with which each actor read the stock row."""

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
            ends = [at for at in (hold.ended, hold.deadline, end) if at is not None]
            lane.leases.append(Span(hold.begin, max(hold.begin, min(ends)), hold.store))
        self._find_overlaps()
        return self.data

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
        self.held[event["owner"]] = _Hold(event["actor"], store, at, event["deadline"])

    def _add_purchase_event(self, event: Event) -> None:
        at, actor = event["t"], event["actor"]
        match event["do"], event["type"]:
            case "read", "ok" if event["quantity"] is not None:
                token = self.claimed[actor] = event.get("token") or 0
                label = gettext_noop("reads %(value)s") + f"|{event['quantity']}"
                claim = (
                    f" · {self.tokens[token]}" if self.is_fenced and token in self.tokens else ""
                )
                self._mark(actor, at, "read", label + claim)
            case "write", "ok":
                label = gettext_noop("writes %(value)s")
                left = event.get("quantity")
                self._mark(actor, at, "good", "" if left is None else f"{label}|{left}")
                sold = sum(isinstance(by_then, int) for _at, by_then in self.data.stock)
                self.data.stock.append((at, sold + 1))
            case "write", "fail":
                self._mark(actor, at, "bad", gettext_noop("rejected"))
                offered, stored = self.claimed.get(actor, 0), max(self.claimed.values(), default=0)
                # A row without a newer token refuses because it has changed since it was read.
                tokens = [self.tokens.get(token, "") for token in (stored, offered)]
                self.data.stock.append((at, " > ".join(tokens) if offered < stored else ""))
            case "buy", "fail" if event["error"] == "SoldOut":
                self._mark(actor, at, "no", gettext_noop("sold out"))
            case "buy", "unknown" if event["error"] in ("Overloaded", "ServiceUnavailable"):
                before = self.data.lane(actor).marks[-1:]
                if not before or before[0][2] != "gives up" or at - before[0][0] > SECOND // 10:
                    self._mark(actor, at, "no", gettext_noop("busy"))

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
                self._end_lease(name, at)
            case "deleted", _:
                self._end_lease(event["holder"], at)
                label = gettext_noop("DEL removes the key of %(value)s")
                self._mark(name, at, "mark", f"{label}|{event['holder']}")
            case "kept", _:
                since = self.faults.get((name, "killed")) or at
                self.data.lane(name).leases.append(Span(since, self.data.end, self.store))
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

    def _end_lease(self, holder: str, at: int) -> None:
        for hold in self.held.values():
            if hold.actor == holder:
                hold.ended = hold.ended or at

    def _find_overlaps(self) -> None:
        last: Span | None = None
        for span in sorted(b for lane in self.data.lanes.values() for b in lane.beliefs):
            if last is not None and last.end - span.begin > SAME:
                self.data.overlaps.append(Span(span.begin, min(last.end, span.end)))
            if last is None or span.end > last.end:
                last = span
