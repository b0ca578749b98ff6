"""The story of one variant of a scenario: a sentence for each event, as the timeline draws it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django.utils.text import capfirst
from django.utils.translation import gettext as _

from loadtest.charts.timeline_data import SECOND, WATCHDOG, TimelineData, lane_title, own, read
from loadtest.charts.timeline_storage import stock_text
from loadtest.history.recorder import Event
from loadtest.history.source import SourceLine, line_of

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
    return _Story(variant).sentences()


class _Story:
    def __init__(self, variant: Mapping[str, Any]) -> None:
        self.data: TimelineData = read(variant)
        self.events: list[Event] = own(variant["events"])
        self.guard = str(variant.get("guard", ""))
        self.aliases = {e["owner"]: e["backend"] for e in self.events if "backend" in e}
        self.tokens = {(one.begin, one.holder): one.token for one in self.data.leases}
        self.writes = {write.at: write for write in self.data.stock}

    def sentences(self) -> list[Sentence]:
        expired = _("The key of %(who)s expires.")
        stays = _("The key of %(who)s is still in the store, and it has no expiry.")
        found = [
            *self._of_leases("expired", expired),  # before the grant that was possible then
            *self._of_events(),
            *self._of_leases("stays", stays),
        ]
        return sorted(found, key=lambda sentence: sentence.at)

    def _of_leases(self, how: str, text: str) -> Iterator[Sentence]:
        """Yield what happens to keys in the stores without a request."""
        for lease in self.data.leases:
            if lease.how == how:
                words = text % {"who": lane_title(lease.holder)}
                yield Sentence(self._since(lease.end), "", words)

    def _of_events(self) -> Iterator[Sentence]:
        for event in self.events:
            lane = event.get("lane") or event["actor"]
            watchdog = self.data.lanes.get(WATCHDOG + lane)
            if event["do"] == "renew" or (
                watchdog and any(at == event["t"] for at, _sign, _label in watchdog.marks)
            ):
                lane = WATCHDOG + lane
            if text := self._words(event):
                who = lane_title(lane)
                alias = self.aliases.get(event.get("owner", ""), "")
                line = line_of(event, alias=alias, guard=self.guard)
                write = self.writes.get(event["t"])
                stock = stock_text(write) if write else str(event.get("quantity", ""))
                is_row = event["do"] in ("read", "write")
                # A name that ends in a Chinese character is not followed by a space.
                text = BETWEEN_CHINESE.sub("", capfirst(text % {**event, "who": who}))
                yield Sentence(self._since(event["t"]), who, text, line, stock if is_row else "")

    def _since(self, at: int) -> int:
        return at - self.data.begin

    def _words(self, event: Event) -> str:
        """Return a sentence in which the fields of the event and `who` are to be filled in."""
        match event["do"], event.get("type"):
            case "acquire", "invoke":
                return _("%(who)s asks for the lock.")
            case "acquire", "ok":
                token = self.tokens.get((event["t"], event["actor"]))
                granted = _("%(who)s is granted the lock.")
                with_token = _("%(who)s is granted the lock, with token {token}.")
                return with_token.format(token=token) if token else granted
            case "acquire", "fail":
                return _("%(who)s gives up waiting for the lock.")
            case "renew", "ok":
                return _("%(who)s extends the lease.")
            case "release", "invoke":
                return _("%(who)s releases the lock.")
            case "release", "fail":
                return _("%(who)s learns from its release that it had lost the lock.")
            case (("acquire" | "release"), "unknown"):
                return _("%(who)s gets no reply from the store.")
            case "lost", _other:
                return _("%(who)s notices that the lock is lost.")
            case "buy", _type:
                return _answer(event)
            case "read", "ok" if event["quantity"] is not None:
                return _("%(who)s reads a stock of %(quantity)s.")
            case "write", _type:
                return self._of_write(event)
        return _lab_words(event)

    def _of_write(self, event: Event) -> str:
        write = self.writes[event["t"]]
        if write.rejected:
            newer, older = write.rejected.split(" > ")
            text = _("%(who)s writes with token {older}. The row has seen {newer} and rejects it.")
            return text.format(older=older, newer=newer)
        if write.rejected is not None:
            return _("%(who)s writes. The row has changed since the read and rejects it.")
        if write.after is None:
            return _("%(who)s writes, and the row accepts it.")
        texts = [_("%(who)s writes a stock of %(quantity)s.")]
        if write.is_lost:
            text = _("The row already said {before}: one sale is not counted.")
            texts.append(text.format(before=write.before))
        if write.sold > write.initial:
            text = _("That makes {sold} sold of {stock}.")
            texts.append(text.format(sold=write.sold, stock=write.initial))
        return " ".join(texts).replace("。 ", "。")


def _answer(event: Event) -> str:
    """Return what the shop answers a buyer."""
    if event["type"] == "invoke":
        return ""
    if event["type"] == "ok":
        return _("%(who)s has an order.")
    return {
        "SoldOut": _("The shop tells %(who)s: sold out."),
        "Overloaded": _("The shop tells %(who)s to try again."),
        "ServiceUnavailable": _("The shop tells %(who)s to try again."),
    }.get(event["error"]) or _("The shop refuses %(who)s: %(error)s.")


def _lab_words(event: Event) -> str:
    """Return the sentence for what the lab did to processes and servers."""
    match event["do"], event.get("type"):
        case "fault", "start":
            return {
                "paused": _("%(who)s is paused: all of its threads stop."),
                "GIL held": _("%(who)s calls C code that holds the GIL: its threads stop."),
                "works": _("%(who)s works on its order."),
                "killed": _("%(who)s is killed."),
                "clock jumps": _("The clock jumps forward on %(who)s."),
                "replication cut": _("The connection to the %(who)s is cut."),
            }.get(event["what"]) or _("%(who)s: %(what)s.").replace("%(what)s", _(event["what"]))
        case "fault", "end":
            return {
                "paused": _("%(who)s continues where it stopped."),
                "GIL held": _("The C code of %(who)s returns."),
                "works": _("%(who)s is done with its work."),
                "down": _("%(who)s: up again."),
            }.get(event["what"], "")
        case "gone", _other:
            return _("The store no longer has the key of %(who)s.")
        case "deleted", _other:
            text = _("This deletes the key of {holder}.")
            return text.format(holder=lane_title(event["holder"]))
        case "mark", _other:
            return {
                "force": _("Staff switch to another lock by force."),
                "drain": _("Staff switch to another lock; the old one is drained first."),
                "database": _("The lock in the database is the active one."),
                "promoted": _("The %(who)s is promoted to master."),
            }.get(event["what"], "")
        case "wake", _other:
            return _("%(who)s is woken.")
    return ""
