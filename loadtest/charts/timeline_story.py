"""The story of one variant of a scenario: a sentence for each event, as the timeline draws it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from loadtest.charts.source import SourceLine, line_of
from loadtest.charts.timeline_data import lane_title, read
from loadtest.charts.timeline_storage import stock_text
from loadtest.kernel.history import SECOND, Event

BETWEEN_CHINESE = re.compile(r"(?<=[\u3400-\u9fff）]) (?=[\u3400-\u9fff])")

WORDS = {
    ("acquire", "invoke"): gettext_noop("%(who)s asks for the lock."),
    ("acquire", "ok"): gettext_noop("%(who)s is granted the lock."),
    ("acquire", "fail"): gettext_noop("%(who)s gives up waiting for the lock."),
    ("acquire", "unknown"): gettext_noop("%(who)s gets no reply from the store."),
    ("renew", "ok"): gettext_noop("%(who)s extends the lease."),
    ("release", "invoke"): gettext_noop("%(who)s releases the lock."),
    ("release", "fail"): gettext_noop("%(who)s learns from its release that it had lost the lock."),
    ("release", "unknown"): gettext_noop("%(who)s gets no reply from the store."),
    ("lost", ""): gettext_noop("%(who)s notices that the lock is lost."),
    ("wake", ""): gettext_noop("%(who)s is woken."),
    ("buy", "ok"): gettext_noop("%(who)s has an order."),
    ("buy", "SoldOut"): gettext_noop("The shop tells %(who)s: sold out."),
    ("buy", "Overloaded"): gettext_noop("The shop tells %(who)s to try again."),
    ("buy", "ServiceUnavailable"): gettext_noop("The shop tells %(who)s to try again."),
    ("gone", ""): gettext_noop("The store no longer has the key of %(who)s."),
    ("start", "paused"): gettext_noop("%(who)s is paused: all of its threads stop."),
    ("end", "paused"): gettext_noop("%(who)s continues where it stopped."),
    ("start", "GIL held"): gettext_noop(
        "%(who)s calls C code that holds the GIL: its threads stop."
    ),
    ("end", "GIL held"): gettext_noop("The C code of %(who)s returns."),
    ("start", "works"): gettext_noop("%(who)s works on its order."),
    ("end", "works"): gettext_noop("%(who)s is done with its work."),
    ("start", "killed"): gettext_noop("%(who)s is killed."),
    ("end", "down"): gettext_noop("%(who)s: up again."),
    ("start", "clock jumps"): gettext_noop("The clock jumps forward on %(who)s."),
    ("start", "replication cut"): gettext_noop("The connection to the %(who)s is cut."),
    ("mark", "force"): gettext_noop("Staff switch to another lock by force."),
    ("mark", "drain"): gettext_noop("Staff switch to another lock; the old one is drained first."),
    ("mark", "database"): gettext_noop("The lock in the database is the active one."),
    ("mark", "promoted"): gettext_noop("The %(who)s is promoted to master."),
}
"""By kind and type of an event, or for faults, marks and refusals by what happened."""


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
        self.data = data = read(variant)
        self.guard = str(variant.get("guard", ""))
        self.aliases = {e["owner"]: e["backend"] for e in data.events if "backend" in e}
        self.tokens = {(one.begin, one.holder): data.token_of(one) for one in data.leases}
        self.writes = {write.at: write for write in data.stock}

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
        for event in self.data.events:
            if text := self._words(event):
                who = lane_title(self.data.lane_of(event))
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
        do, kind = event["do"], event.get("type", "")
        match do, kind:
            case "acquire", "ok":
                if token := self.tokens.get((event["t"], event["actor"])):
                    text = _("%(who)s is granted the lock, with token {token}.")
                    return text.format(token=token)
            case "read", "ok" if event["quantity"] is not None:
                return _("%(who)s reads a stock of %(quantity)s.")
            case "write", _type:
                return self._of_write(event)
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
