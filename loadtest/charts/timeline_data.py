"""The recorded events of one variant of a scenario, as the lanes of a timeline and as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from loadtest.history.recorder import Event

SECOND = 1_000_000_000
SAME = SECOND // 500
"""Nanoseconds within which two moments count as one."""
# Events are recorded in English; makemessages finds their texts here.
_RECORDED = (
    *(gettext_noop("buyer A"), gettext_noop("buyer B"), gettext_noop("buyer C")),
    *(gettext_noop("buyer D"), gettext_noop("holder"), gettext_noop("staff")),
    *(gettext_noop("master"), gettext_noop("replica"), gettext_noop("database")),
    *(gettext_noop("paused"), gettext_noop("GIL held"), gettext_noop("works")),
    *(gettext_noop("killed"), gettext_noop("down"), gettext_noop("clock jumps")),
    *(gettext_noop("replication cut"), gettext_noop("promoted")),
    *(gettext_noop("force"), gettext_noop("drain")),
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
    waits: list[Span] = field(default_factory=list)
    faults: list[Span] = field(default_factory=list)
    marks: list[tuple[int, str, str]] = field(default_factory=list)
    """The time, sign and label of each mark."""


@dataclass
class TimelineData:
    """The lanes in the order of their first event, the overlaps and the writes to the stock."""

    begin: int
    end: int
    lanes: dict[str, Lane] = field(default_factory=dict)
    overlaps: list[Span] = field(default_factory=list)
    stock: list[tuple[int, int]] = field(default_factory=list)
    """The time of each accepted write, and the number of units sold by then."""

    def lane(self, name: str) -> Lane:
        """Return the lane of this name; create it if there is none."""
        return self.lanes.setdefault(name, Lane(name))


def read(variant: Mapping[str, Any]) -> TimelineData:
    """Return the timeline data of a variant."""
    guard = next((e["name"] for e in variant["events"] if e["do"] == "acquire"), None)
    # Other locks are left out: a form that is sent twice also holds one in its own name.
    events: Sequence[Event] = [
        e for e in variant["events"] if e["do"] != "renew" and e.get("name", guard) == guard
    ]
    data = TimelineData(events[0]["t"] if events else 0, events[-1]["t"] if events else 1)
    held: dict[str, dict[str, Any]] = {}
    asked: dict[str, int] = {}
    faults: dict[tuple[str, str], int] = {}
    for event in events:
        _add_event(data, event, held, asked, faults)
    for (name, what), begin in faults.items():
        data.lane(name).marks.append((begin, "kill", what))
    deadlines = {e["owner"]: e["deadline"] for e in variant["events"] if e.get("deadline")}
    for owner, hold in held.items():
        lane, begin = data.lane(hold["actor"]), hold["begin"]
        lane.beliefs.append(Span(begin, hold.get("end", data.end)))
        ends = [hold.get("released"), hold.get("gone"), deadlines.get(owner), data.end]
        lane.leases.append(Span(begin, max(begin, min(end for end in ends if end is not None))))
    spans = sorted((b, lane.name) for lane in data.lanes.values() for b in lane.beliefs)
    last: Span | None = None
    for span, _name in spans:
        if last is not None and last.end - span.begin > SAME:
            data.overlaps.append(Span(span.begin, min(last.end, span.end)))
        if last is None or span.end > last.end:
            last = span
    return data


def _add_event(
    data: TimelineData,
    event: Event,
    held: dict[str, dict[str, Any]],
    asked: dict[str, int],
    faults: dict[tuple[str, str], int],
) -> None:
    at, actor, kind = event["t"], event["actor"], event.get("type")
    owner = event.get("owner", "")
    request = f"{owner} {actor}"
    match event["do"], kind:
        case "acquire", "invoke":
            data.lane(actor)
            asked[request] = at
        case "acquire", _:
            begin = asked.pop(request, at)
            if at - begin > SAME:
                data.lane(actor).waits.append(Span(begin, at))
            if kind == "ok":
                held[owner] = {"actor": actor, "begin": at}
            elif at - begin > SAME:
                data.lane(actor).marks.append((at, "no", gettext_noop("gives up")))
        case "release", "invoke" if owner in held:
            held[owner].setdefault("end", at)
        case "release", "ok" if owner in held:
            held[owner]["released"] = at
        case "lost", _ if owner in held:
            held[owner].setdefault("end", at)
            data.lane(actor).marks.append((at, "no", gettext_noop("finds it lost")))
        case "read", "ok" if event["quantity"] is not None:
            label = gettext_noop("reads %(quantity)s")
            data.lane(actor).marks.append((at, "read", label + f"|{event['quantity']}"))
        case "write", "ok":
            data.lane(actor).marks.append((at, "good", ""))
            data.stock.append((at, len(data.stock) + 1))
        case "write", "fail":
            data.lane(actor).marks.append((at, "bad", gettext_noop("refused")))
        case "buy", "fail" if event["error"] == "SoldOut":
            data.lane(actor).marks.append((at, "no", gettext_noop("sold out")))
        case "buy", "unknown" if event["error"] in ("Overloaded", "ServiceUnavailable"):
            before = data.lane(actor).marks[-1:]
            if not before or before[0][2] != "gives up" or at - before[0][0] > SECOND // 10:
                data.lane(actor).marks.append((at, "no", gettext_noop("busy")))
        case "fault", "start":
            faults[event["lane"], event["what"]] = at
            data.lane(event["lane"])
            if "target" in event:
                for waiting in [one for one in asked if one.endswith(f" {event['target']}")]:
                    data.lane(event["target"]).waits.append(Span(asked.pop(waiting), at))
                for hold in held.values():
                    if hold["actor"] == event["target"]:
                        hold.setdefault("end", at)
        case "fault", "end":
            begin = faults.pop((event["lane"], event["what"]))
            data.lane(event["lane"]).faults.append(Span(begin, at, event["what"]))
        case "gone", _:
            for hold in held.values():
                if hold["actor"] == event["lane"]:
                    hold.setdefault("gone", at)
        case "kept", _:
            since = faults.get((event["lane"], "killed")) or at
            data.lane(event["lane"]).leases.append(Span(since, data.end))
        case "mark", _:
            data.lane(event["lane"]).marks.append((at, "mark", event["what"]))
        case (("wake" | "poll"), _):
            data.lane(event["lane"]).marks.append((at, event["do"], ""))


class Row(NamedTuple):
    """One line of the table below the chart."""

    seconds: float
    who: str
    what: str


def rows(variant: Mapping[str, Any]) -> list[Row]:
    """Return the events of the chart in words and in order."""
    events: Sequence[Event] = variant["events"]
    found = []
    for event in events:
        if what := _words(event):
            at = (event["t"] - events[0]["t"]) / SECOND
            found.append(Row(round(at, 3), _(event.get("lane") or event["actor"]), what))
    return found


def _words(event: Event) -> str:
    match event["do"], event.get("type"):
        case "acquire", "invoke":
            return _("asks for the lock")
        case "acquire", "ok":
            return _("is granted the lock, token %(token)s") % event
        case "acquire", "fail":
            return _("gives up waiting")
        case "release", "ok":
            return _("releases the lock")
        case "release", ("fail" | "unknown"):
            return _("finds at its release that the lock was lost")
        case "lost", _other:
            return _("finds that the lock is lost")
        case "read", "ok" if event["quantity"] is not None:
            return _("reads a stock of %(quantity)s") % event
        case "write", "ok":
            return _("writes, and is accepted")
        case "write", "fail":
            return _("writes, and is refused")
        case "buy", "ok":
            return _("has bought")
        case "buy", ("fail" | "unknown"):
            return _("is refused: %(error)s") % event
        case "fault", "start":
            return _(event["what"])
        case "fault", "end":
            return _("%(what)s: over") % {"what": _(event["what"])}
        case "gone", _other:
            return _("is lost by the store")
        case "kept", _other:
            return _("stays in the store without an expiry")
        case "mark", _other:
            return _(event["what"])
        case "wake", _other:
            return _("is woken")
    return ""
