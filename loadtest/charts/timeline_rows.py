"""The recorded events of one variant of a scenario as a table in words."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.utils.translation import gettext as _

from loadtest.charts.timeline_data import SECOND, lane_title, short_tokens
from loadtest.history.recorder import Event


class Row(NamedTuple):
    """One line of the table."""

    seconds: float
    who: str
    what: str


def rows(variant: Mapping[str, Any]) -> list[Row]:
    """Return the events of the chart in words and in order."""
    events: Sequence[Event] = variant["events"]
    tokens = short_tokens(events)
    found = []
    for event in events:
        if what := _words({**event, "token": tokens.get(event.get("token", 0))}):
            at = (event["t"] - events[0]["t"]) / SECOND
            found.append(Row(round(at, 3), lane_title(event.get("lane") or event["actor"]), what))
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
            return _("learns on release that the lock was lost")
        case "lost", _other:
            return _("notices the lock is lost")
        case "read", "ok" if event["quantity"] is not None:
            return _("reads a stock of %(quantity)s") % event
        case "write", "ok" if event.get("quantity") is not None:
            return _("writes a stock of %(quantity)s: accepted") % event
        case "write", "ok":
            return _("writes, and is accepted")
        case "write", "fail":
            return _("writes, and is rejected")
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
        case "deleted", _other:
            return _("deletes the key of %(holder)s") % {"holder": _(event["holder"])}
        case "kept", _other:
            return _("stays in the store without an expiry")
        case "mark", _other:
            return _(event["what"])
        case "wake", _other:
            return _("is woken")
    return ""
