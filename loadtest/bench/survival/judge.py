"""Verdicts over the record of one run; they know nothing about the library."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from loadtest.bench.survival.libraries import LEASE
from loadtest.kernel.history import SECOND, Event
from loadtest.kernel.holds import Hold, holds, overlaps


class Verdict(NamedTuple):
    """What happened in a run: a text with a place for the value, and a good end or not."""

    text: str
    survived: bool
    values: tuple[float, ...] = ()


def _first(events: Sequence[Event], do: str, actor: str = "", type: str = "") -> Event | None:
    found = (e for e in events if e["do"] == do and actor in ("", e["actor"]))
    return next((event for event in found if type in ("", event.get("type"))), None)


def _hold_of(grants: Sequence[Hold], actor: str) -> Hold | None:
    return next((hold for hold in grants if hold.actor == actor), None)


def _noticed(events: Sequence[Event], actor: str = "A") -> str:
    """Return how the holder learned that it had lost the lock."""
    if _first(events, "lost", actor):
        return "told"
    asked = _first(events, "asked", actor)
    if asked and asked.get("type") != "ok":
        return "told if it asks"
    for how in ("fail", "unknown"):
        if _first(events, "release", actor, how):
            return "told at its release"
    return "never told"


def _late_write(events: Sequence[Event]) -> tuple[str, bool]:
    write = _first(events, "write", "A")
    is_refused = write is not None and write.get("type") == "fail"
    what = "refused by its token" if is_refused else "accepted"
    return f"{what}; {_noticed(events)}", is_refused


def next_after_kill(events: Sequence[Event]) -> Verdict:
    """Judge how long a killed holder blocks the next."""
    fault, after = _first(events, "fault"), _hold_of(holds(events), "B")
    if fault is None or after is None:
        return Verdict("never", survived=False)
    return Verdict("after {} s", True, ((after.begin - fault["t"]) / SECOND,))


def late_write(events: Sequence[Event]) -> Verdict:
    """Judge the write of a holder that was paused past its lease."""
    if not overlaps(holds(events), "believed"):
        return Verdict("stays the holder", survived=True)
    return Verdict(*_late_write(events))


def long_work(events: Sequence[Event]) -> Verdict:
    """Judge the exclusion while a holder works longer than its lease."""
    both = overlaps(holds(events), "believed")
    if not both:
        return Verdict("one holder", survived=True)
    return Verdict("two holders for {} s", False, (both[0][2] / SECOND,))


def late_release(events: Sequence[Event]) -> Verdict:
    """Judge the release of a holder that has a successor."""
    if _first(events, "released late") is None:
        return Verdict("no successor", survived=True)
    grants = holds(events)
    second, third = _hold_of(grants, "B"), _hold_of(grants, "C")
    if second is None or third is None or third.begin > second.believed:
        return Verdict("keeps it", survived=True)
    if third.begin - second.begin > LEASE * SECOND:
        return Verdict("too slow to tell", survived=False)
    return Verdict("deletes it", survived=False)


def after_restart(events: Sequence[Event]) -> Verdict:
    """Judge the exclusion after the store was killed and started."""
    if not overlaps(holds(events), "believed"):
        return Verdict("one holder", survived=True)
    text, is_refused = _late_write(events)
    return Verdict(f"two holders; late write {text}", is_refused)


def order(events: Sequence[Event]) -> Verdict:
    """Judge the order in which waiters are served, and what that costs."""
    waiters = [hold for hold in holds(events) if hold.owner.startswith("waiter")]
    asked = {e["owner"] for e in events if e["do"] == "acquire" and e["owner"] != "A"}
    unserved = len(asked) - len(waiters)
    served = [int(hold.owner.split()[1]) for hold in waiters]
    overtaken = sum(max(served[:at], default=-1) > one for at, one in enumerate(served))
    requests = _first(events, "requests")
    assert requests is not None
    cost = requests["commands"] / max(1, len(waiters))
    if unserved:
        return Verdict("{} unserved, {} overtaken; {} a grant", False, (unserved, overtaken, cost))
    if overtaken:
        return Verdict("{} overtaken; {} a grant", False, (overtaken, cost))
    return Verdict("kept; {} a grant", True, (cost,))


def lost_reply(events: Sequence[Event]) -> Verdict:
    """Judge the lock after the reply to its acquisition was lost."""
    grants = holds(events)
    far, other = _hold_of(grants, "F"), _hold_of(grants, "B")
    asked = _first(events, "acquire", "F")
    if far is not None:
        return Verdict("granted all the same", survived=True)
    if other is None or asked is None:
        return Verdict("never free", survived=False)
    return Verdict("not granted; free after {} s", True, ((other.begin - asked["t"]) / SECOND,))


JUDGES: dict[str, Callable[[Sequence[Event]], Verdict]] = {
    "kill": next_after_kill,
    "pause": late_write,
    "work": long_work,
    "late-release": late_release,
    "restart": after_restart,
    "order": order,
    "lost-reply": lost_reply,
}


def agreed(verdicts: Sequence[Verdict]) -> str:
    """Return the text of a cell: one verdict with the spread of its values, or all of them."""
    by_text: dict[str, list[Verdict]] = {}
    for one in verdicts:
        by_text.setdefault(one.text, []).append(one)
    found = []
    for text, same in by_text.items():
        columns = zip(*(one.values for one in same), strict=True)
        shown = map(_spread, columns)
        times = f" ({len(same)} of {len(verdicts)})" if len(by_text) > 1 else ""
        found.append(text.format(*shown) + times)
    return ", ".join(found)


def _spread(values: Sequence[float]) -> str:
    least, most = round(min(values)), round(max(values))
    return str(least) if least == most else f"{least}-{most}"
