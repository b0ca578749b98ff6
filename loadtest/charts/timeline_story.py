"""The story of one variant of a scenario: a sentence for each event, as the timeline draws it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

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

BETWEEN_CHINESE = re.compile(r"(?<=[\u3400-\u9fff）]) (?=[\u3400-\u9fff])")

UNAVAILABLE = gettext_noop("%(who)s cannot reach the store of the lock.")
WORDS = {
    ("acquire", "invoke"): gettext_noop("%(who)s asks for the lock."),
    ("acquire", "fail"): gettext_noop("%(who)s gives up waiting for the lock."),
    ("acquire", "unknown"): UNAVAILABLE,
    ("renew", "ok"): gettext_noop("%(who)s extends the lease."),
    ("release", "invoke"): gettext_noop("%(who)s releases the lock."),
    ("release", "fail"): gettext_noop("%(who)s learns from its release that it had lost the lock."),
    ("release", "unknown"): UNAVAILABLE,
    ("lost", ""): gettext_noop("%(who)s notices that the lock is lost."),
    ("wake", ""): gettext_noop("%(who)s is woken."),
    ("buy", "ok"): gettext_noop("%(who)s has an order."),
    ("buy", "replayed"): gettext_noop(
        "The shop finds the order of the first form and returns it to %(who)s."
    ),
    ("buy", "SoldOut"): gettext_noop("The shop tells %(who)s: sold out."),
    ("buy", "Overloaded"): gettext_noop("The shop tells %(who)s to try again."),
    ("buy", "ServiceUnavailable"): gettext_noop("The shop tells %(who)s to try again."),
    ("gone", ""): gettext_noop("The store no longer has the key of %(who)s."),
    ("gone", "session"): gettext_noop("The connection of %(who)s ends, and with it the lock."),
    ("gone", "masters"): gettext_noop("Three of the five masters do not have the key of %(who)s."),
    ("start", "paused"): gettext_noop("%(who)s is paused: all of its threads stop."),
    ("end", "paused"): gettext_noop("%(who)s continues where it stopped."),
    ("start", "GIL held"): gettext_noop(
        "%(who)s calls C code that holds the GIL: its threads stop."
    ),
    ("end", "GIL held"): gettext_noop("The C code of %(who)s returns."),
    ("start", "works"): gettext_noop("%(who)s works on its order."),
    ("end", "works"): gettext_noop("%(who)s is done with its work."),
    ("start", "pays"): gettext_noop("%(who)s pays."),
    ("start", "killed"): gettext_noop("%(who)s is killed."),
    ("end", "down"): gettext_noop("%(who)s: up again."),
    ("start", "clock jumps"): gettext_noop("The clock jumps forward on %(who)s."),
    ("start", "replication cut"): gettext_noop("The connection to the %(who)s is cut."),
    ("mark", "force"): gettext_noop("Staff switch to another lock by force."),
    ("mark", "drain"): gettext_noop(
        "Staff switch to another lock; the switch waits for the holder."
    ),
    ("mark", "promoted"): gettext_noop("The %(who)s is promoted to master."),
    ("count", ""): gettext_noop("Final count: %(sold)s sold of %(stock)s."),
}
"""By kind and type of an event, or for faults, marks and refusals by what happened."""
UNLOCKED = {
    ("acquire", "invoke"): gettext_noop("%(who)s goes on at once: there is no lock."),
    ("acquire", "ok"): "",
    ("release", "invoke"): gettext_noop("%(who)s has no lock to release."),
}
"""Instead of WORDS under the backend `none`."""


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
    text = {
        "expired": _("The key of %(who)s expires."),
        "stays": _("The key of %(who)s is still in the store, and it has no expiry."),
    }[how]
    for lease in data.leases:
        if lease.how == how:
            yield Sentence(lease.end - data.begin, "", text % {"who": lane_title(lease.holder)})


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
    if alias == "none" and (do, kind) in UNLOCKED:
        text = UNLOCKED[do, kind]
        return text and _(text)
    match do, kind:
        case "acquire", "ok":
            grant = event["t"], event["actor"]
            tokens = {data.token_of(one) for one in data.leases if (one.begin, one.holder) == grant}
            token = next(filter(None, tokens), "")
            return _granted(token, is_check=data.is_check(event))
        case "release", "invoke" if data.has_released(event):
            return _("%(who)s releases the lock again, at the end of its purchase.")
        case "release", "fail" if data.has_released(event):
            return _("The store refuses the release: %(who)s no longer holds the lock.")
        case "read", "ok" if event["quantity"] is not None:
            if (claim := data.claim_of(event)) and "fenced" in guard:
                text = _("%(who)s claims the row with token {token} and reads %(quantity)s.")
                return text.format(token=claim)
            return _("%(who)s reads a stock of %(quantity)s.")
        case "buy", "ok" if event.get("replayed"):
            kind = "replayed"
        case "step", _type:
            what = f"{event['what']}|{event.get('value', '')}".removesuffix("|")
            text = _("%(who)s: %(what)s.") if "lane" in event else _("%(who)s %(what)s.")
            return text.replace("%(what)s", translate(what))
        case "write", _type:
            return _of_write(writes[event["t"]])
        case "deleted", _type:
            text = _("This deletes the key of {holder}.")
            return text.format(holder=lane_title(event["holder"]))
        case "fault", _type:
            do, kind = kind, event["what"]
        case ("buy", ("fail" | "unknown")) | ("mark", _):
            kind = event.get("error") or event["what"]
    if text := WORDS.get((do, kind), ""):
        return _(text)
    if do == "start":
        return _("%(who)s: %(what)s.").replace("%(what)s", _(kind))
    is_refusal = do == "buy" and "error" in event
    return _("The shop refuses %(who)s: %(error)s.") if is_refusal else ""


def _granted(token: str, *, is_check: bool) -> str:
    """Return the sentence of a grant, and what it is for if the shop only checks it."""
    if token and is_check:
        text = _(
            "%(who)s is granted the lock, with token {token}, only to check that new tokens are "
            "higher than that of the row."
        )
    elif token:
        text = _("%(who)s is granted the lock, with token {token}.")
    elif is_check:
        text = _(
            "%(who)s is granted the lock, only to check after the refused write that a new grant "
            "is not stale."
        )
    else:
        text = _("%(who)s is granted the lock.")
    return text.format(token=token)


def _of_write(write: StockWrite) -> str:
    if write.refused == NONE_LEFT:
        return _("%(who)s writes. No unit is left, and the row refuses it.")
    if write.refused:
        newer, older = write.refused.split(" > ")
        text = _("%(who)s writes with token {older}. The row carries {newer} and refuses it.")
        if newer.isdigit():
            text = _(
                "%(who)s writes with a token of epoch {older}. The row carries one of epoch "
                "{newer} and refuses it."
            )
        return text.format(older=older, newer=newer)
    if write.refused is not None:
        return _("%(who)s writes. The row has changed since the read and refuses it.")
    if write.after is None:
        return _("%(who)s writes, and the row accepts it.")
    texts = [_("%(who)s writes a stock of %(quantity)s.")]
    if write.uncounted:
        text = _("The row already said {before}: one sale is not counted.")
        if write.uncounted > 1:
            text = _("The row already said {before}: {uncounted} sales are not counted.")
        texts.append(text.format(before=write.before, uncounted=write.uncounted))
    if write.sold > write.initial:
        text = _("That makes {sold} sold of {stock}.")
        texts.append(text.format(sold=write.sold, stock=write.initial))
    return " ".join(texts).replace("。 ", "。")
