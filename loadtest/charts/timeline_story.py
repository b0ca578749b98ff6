"""The story of one variant of a scenario: a sentence for each event, as the timeline draws it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django.utils.text import capfirst
from django.utils.translation import gettext as _

from loadtest.charts.source import SourceLine, line_of
from loadtest.charts.timeline_data import (
    NONE_LEFT,
    WATCHDOG,
    StockWrite,
    TimelineData,
    lane_title,
    translate,
)
from loadtest.charts.timeline_storage import stock_text
from loadtest.kernel.history import SECOND, Event
from loadtest.texts import texts

BETWEEN_CHINESE = re.compile(r"(?<=[\u3400-\u9fff）]) (?=[\u3400-\u9fff])")


class Sentence(NamedTuple):
    """One event in words, and what playback shows beside it."""

    at: int
    """Nanoseconds since the first event."""
    who: str
    """The process, or "" for the store."""
    text: str
    line: SourceLine | None = None
    stock: str = ""
    """What the event did to the stock row."""

    @property
    def time(self) -> str:
        """The time since the first event, in words."""
        return _("%.3f s") % (self.at / SECOND)


def story(variant: Mapping[str, Any]) -> list[Sentence]:
    """Return the events of the chart in words and in order."""
    data, guard = TimelineData(variant), str(variant.get("guard", ""))
    aliases = {e["owner"]: e["backend"] for e in data.events if "backend" in e}
    writes = {write.at: write for write in data.stock}
    released = dict(_of_releases(data))
    found = list(_of_leases(data, "expired"))  # before the grant that was possible then
    for event in data.events:
        alias = aliases.get(event.get("owner", ""), "")
        if text := _words(event, data, writes, alias, guard):
            who = lane_title(lane := data.lane_of(event))
            who = _("one of the other buyers") if lane == "other buyers" else who
            # What a buyer learns from its release, the line of that release shows.
            is_told = event["do"] == "lost" and not lane.startswith(WATCHDOG)
            how = released.get(event["t"], "")
            line = line_of(event, alias=alias, guard=guard, released=how)
            line = None if is_told else line
            # A name that ends in a Chinese character is not followed by a space.
            text = BETWEEN_CHINESE.sub("", capfirst(text % {**event, "who": who}))
            write, stock = writes.get(event["t"]), ""
            if event["do"] == "read" or (write and write.before is not None):
                stock = stock_text(write) if write else str(event.get("quantity", ""))
            found.append(Sentence(event["t"] - data.begin, who, text, line, stock))
    return sorted([*found, *_of_leases(data, "stays")], key=lambda sentence: sentence.at)


def _of_leases(data: TimelineData, how: str) -> Iterator[Sentence]:
    """Yield what happens to keys in the stores without a request."""
    for lease in data.leases:
        if lease.how == how:
            text = texts()["story"][how] % {"who": lane_title(lease.holder)}
            yield Sentence(lease.end - data.begin, "", text)


def _of_releases(data: TimelineData) -> Iterator[tuple[int, str]]:
    """Yield the times of unusual releases with what they were: "refused" or "early"."""
    asked: dict[str, int] = {}
    for event in data.events:
        match event["do"], event.get("type"):
            case "release", "invoke":
                if (owner := event["owner"]) in asked:
                    yield asked[owner], "early"
                asked[owner] = event["t"]
            case "release", "fail":
                yield asked[event["owner"]], "refused"


def _words(
    event: Event, data: TimelineData, writes: Mapping[int, StockWrite], alias: str, guard: str
) -> str:
    """Return a sentence in which the fields of the event and `who` are to be filled in."""
    do, kind = event["do"], event.get("type", "")
    words, key, more = texts()["story"], f"{do} {kind}".strip(), {}
    if alias == "none" and key in texts()["unlocked"]:
        return str(texts()["unlocked"][key])
    match do, kind:
        case "acquire", "ok":
            grant = event["t"], event["actor"]
            tokens = {data.token_of(one) for one in data.leases if (one.begin, one.holder) == grant}
            more = {"token": (token := next(filter(None, tokens), ""))}
            key = "granted token" if token else "granted"
            key += " check" if data.is_check(event) else ""
        case "release", "invoke" if data.has_released(event):
            key = "release again"
        case "release", "fail" if data.has_released(event):
            key = "release refused"
        case "read", "ok" if event["quantity"] is not None:
            more = {"token": (claim := data.claim_of(event))}
            key = "read claim" if claim and "fenced" in guard else "read"
        case "step", _type:
            what = f"{event['what']}|{event.get('value', '')}".removesuffix("|")
            text = words["step lane" if "lane" in event else "step"]
            return str(text).replace("%(what)s", translate(what))
        case "write", _type:
            return _of_write(writes[event["t"]])
        case "deleted", _type:
            more = {"holder": lane_title(event["holder"])}
        case "fault", "start" if f"start {event['what']}" not in words:
            return str(words["start"]).replace("%(what)s", _(event["what"]))
        case "fault", _type:
            key = f"{kind} {event['what']}"
        case "buy", "ok" if event.get("replayed"):
            key = "buy replayed"
        case "buy", ("fail" | "unknown"):
            key = f"buy {event['error']}"
            key = key if key in words else "buy refused"
        case "mark", _type:
            key = f"mark {event['what']}"
    return str(words.get(key, "")).format(**more)


def _of_write(write: StockWrite) -> str:
    words, told = texts()["story"], ["write"]
    newer = older = ""
    if write.refused == NONE_LEFT:
        told = ["write none left"]
    elif write.refused:
        newer, older = write.refused.split(" > ")
        told = ["write older epoch" if newer.isdigit() else "write older token"]
    elif write.refused is not None:
        told = ["write changed"]
    elif write.after is None:
        told = ["write accepted"]
    else:
        told += ["uncounted sales" if write.uncounted > 1 else "uncounted"] * bool(write.uncounted)
        told += ["oversold"] * (write.sold > write.initial)
    known = {**write._asdict(), "stock": write.initial, "newer": newer, "older": older}
    return " ".join(words[one].format(**known) for one in told).replace("。 ", "。")
