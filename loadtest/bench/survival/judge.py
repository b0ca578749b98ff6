"""Verdicts over the record of one run; they know nothing about the library."""

from collections.abc import Sequence
from typing import NamedTuple

from loadtest.bench.survival.libraries import LEASE
from loadtest.kernel.history import SECOND, Event
from loadtest.kernel.holds import Hold, holds, overlaps

Events = Sequence[Event]
AT_ONCE = 0.5
"""A shorter time depends on the load of the machine."""
LATER = 0.5
"""Seconds by which a waiter asks later, at least, if it is said to overtake."""


class Verdict(NamedTuple):
    """The end of a run: a text with places for figures, and True if the lock held."""

    text: str
    survived: bool
    figures: Sequence[float] = ()


def _first(events: Events, do: str, actor: str = "", *types: str) -> Event | None:
    found = (e for e in events if e["do"] == do and actor in ("", e["actor"]))
    return next((event for event in found if not types or event.get("type") in types), None)


def _grant(events: Events, actor: str) -> Hold | None:
    return next((hold for hold in holds(events) if hold.actor == actor), None)


def _two_holders(events: Events) -> float:
    """Return the seconds for which two processes acted as the holder."""
    both = overlaps(holds(events), "believed")
    return max((length for _, _, length in both), default=0) / SECOND


def _at_once(events: Events) -> Verdict | None:
    """Return the verdict on a lock that had two holders, although none was paused; else None."""
    seconds = _two_holders(events)
    return Verdict("two holders for {} s", False, [seconds]) if seconds else None


def _late_write(events: Events) -> Verdict:
    """Return the fate of A's write, and how A learned that it had lost the lock.

    B has written before. What they write to refuses a token below one that it has seen.
    """
    tokens = {event["actor"]: event["token"] or 0 for event in events if event["do"] == "write"}
    refused = 0 < tokens.get("A", 0) < tokens.get("B", 0)
    noticed = "never told"
    if _first(events, "lost", "A"):
        noticed = "told"
    elif _first(events, "asked", "A", "fail", "unknown"):
        noticed = "told if it asks"
    elif _first(events, "release", "A", "fail", "unknown"):
        noticed = "told at release"
    return Verdict(f"{'refused' if refused else 'accepted'}, {noticed}", refused)


def _after(text: str, begin: int, grant: Hold) -> Verdict:
    seconds = (grant.begin - begin) / SECOND
    if seconds < AT_ONCE:
        return Verdict(f"{text}at once", survived=True)
    return Verdict(f"{text}after {{}} s", True, [seconds])


def next_after_kill(events: Events) -> Verdict:
    """Judge how long a killed holder blocks the next."""
    if both := _at_once(events):
        return both
    fault, after = _first(events, "fault"), _grant(events, "B")
    if fault is None or after is None:
        return Verdict("never", survived=False)
    return _after("", fault["t"], after)


def pause(events: Events) -> Verdict:
    """Judge the write of a holder that was paused past its lease."""
    return _late_write(events) if _two_holders(events) else Verdict("stays the holder", True)


def long_work(events: Events) -> Verdict:
    """Judge the exclusion while a holder works longer than its lease."""
    return _at_once(events) or Verdict("one holder", survived=True)


def late_release(events: Events) -> Verdict:
    """Judge the release of a holder that has a successor."""
    second, third = _grant(events, "B"), _grant(events, "C")
    if second is None or _first(events, "released late") is None:
        return Verdict("no successor", survived=True)
    if third is None or third.begin > second.believed:
        return Verdict("keeps it", survived=True)
    if third.begin - second.begin > LEASE * SECOND:
        return Verdict("too slow to tell", survived=False)
    return Verdict("loses it", survived=False)


def after_restart(events: Events) -> Verdict:
    """Judge the exclusion after the store was killed and started."""
    if not _two_holders(events):
        return Verdict("one holder", survived=True)
    write = _late_write(events)
    return write._replace(text=f"two holders, {write.text}")


def after_cut(events: Events) -> Verdict:
    """Judge the exclusion after the holder was cut off; one that is told in time can stop."""
    told, other = _first(events, "lost", "A"), _grant(events, "B")
    if told and other and told["t"] < other.begin:
        return Verdict("told before the next", survived=True)
    return after_restart(events)


def order(events: Events) -> Verdict:
    """Judge the order in which waiters are served, and the requests to the store per grant."""
    if both := _at_once(events):
        return both
    served = [hold.asked / SECOND for hold in holds(events) if hold.owner != "A"]
    asked = {e["owner"] for e in events if e["do"] == "acquire" and e["owner"] != "A"}
    overtaken = sum(max(served[:at], default=0) > one + LATER for at, one in enumerate(served))
    requests = _first(events, "requests") or {"commands": 0}
    counts = {"unserved": len(asked) - len(served), "overtaken": overtaken}
    text = ", ".join(f"{{}} {name}" for name, count in counts.items() if count) or "in order"
    figures = [*filter(None, counts.values()), requests["commands"] / max(1, len(served))]
    return Verdict(f"{text}; {{}} requests", not any(counts.values()), figures)


def lost_reply(events: Events) -> Verdict:
    """Judge the lock after the reply to its acquisition was lost."""
    if both := _at_once(events):
        return both
    if _grant(events, "F"):
        return Verdict("granted all the same", survived=True)
    return _freed(events, "refused", _first(events, "acquire", "F"))


def before_commit(events: Events) -> Verdict:
    """Judge what the next holder reads, if the lock is released inside a transaction."""
    read = _first(events, "read", "B")
    if read is None:
        return Verdict("never free", survived=False)
    return Verdict("sees the row" if read["found"] else "misses the row", bool(read["found"]))


def _freed(events: Events, told: str, asked: Event | None) -> Verdict:
    other = _grant(events, "B")
    if other is None or asked is None:
        return Verdict(f"{told}, never free", survived=False)
    return _after(f"{told}, free ", asked["t"], other)


def lost_release(events: Events) -> Verdict:
    """Judge the lock after the reply to its release was lost; a second one may hit the next."""
    told = "error" if _first(events, "release", "A", "fail", "unknown") else "no error"
    if _two_holders(events):
        return Verdict(f"{told}, successor loses it", survived=False)
    return _freed(events, told, _first(events, "release", "A"))


def after_cancel(events: Events) -> Verdict:
    """Judge the longest wait for a lock after a task was cancelled while it acquired it."""
    if lacks := _first(events, "does not apply"):
        return Verdict(lacks["why"], survived=True)
    grants = [hold for hold in holds(events) if hold.actor == "B"]
    asked = [(event["do"], event["actor"], event.get("type")) for event in events]
    if len(grants) < asked.count(("acquire", "B", "invoke")):
        return Verdict("never", survived=False)
    longest = max(grants, key=lambda hold: hold.begin - hold.asked)
    found = _after("", longest.asked, longest)
    return found._replace(survived=not found.figures)


def agreed(verdicts: Sequence[Verdict]) -> str:
    """Return the text of a cell: one verdict with the spread of its figures, or all of them."""
    by_text: dict[str, list[Sequence[float]]] = {}
    for one in verdicts:
        by_text.setdefault(one.text, []).append(one.figures)
    found = []
    for text, same in by_text.items():
        spreads = ({round(min(column)), round(max(column))} for column in zip(*same, strict=True))
        shown = ["-".join(map(str, sorted(spread))) for spread in spreads]
        times = f" ({len(same)} of {len(verdicts)})" if len(by_text) > 1 else ""
        found.append(text.format(*shown) + times)
    return "; ".join(found)
