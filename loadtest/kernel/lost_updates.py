"""Find lost updates in a recorded history: writes computed from a number that was out of date."""

from bisect import bisect
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from loadtest.kernel.history import SECOND, Event


class _Update(NamedTuple):
    read: Event
    write: Event


def lost_updates(
    events: Iterable[Event], *, units: int, counted: int, started: float = 0.0
) -> dict[str, Any] | None:
    """Return the first lost update, and how many there were; None if there is none.

    {"units": 200, "counted": 50, "times": 140, "events": [...], ...}: the reads and writes of
    "buyer A" and "buyer B". Both read the same number before either wrote; then A wrote, and B
    overwrote it.
    If others had sold more by then, which B put back, "other buyers" read what A left and wrote
    what B found. `seconds` is the time between B's read and write,
    `at` the seconds from `started`, a monotonic time, to that write.
    `times` counts the writes that overwrote a quantity which their buyer had not read: fewer than
    the sales that the row misses, because such a write may undo several. The rows show how many
    `units` were sold and how many of them the stock row `counted`: the last event of a killed
    process may be missing, and those of two may be recorded in another order than committed.
    `put_back` are the sold units that such writes put back into the stock, and `taken_again` those
    that later ones, which had read an older and lower stock, took out of it again.
    """
    first: list[Event] = []
    seconds, times, put_back, taken_again = 0.0, 0, 0, 0
    reads: dict[tuple[str, int], Event] = {}
    updates: list[_Update] = []
    written: list[int] = []
    for event in events:
        if event["do"] not in ("read", "write") or event.get("quantity") is None:
            continue
        key = event["actor"], event["thread"]
        if event["do"] == "read":
            reads[key] = event
            continue
        update = _Update(reads.pop(key), event)
        # Between this read and this write, another buyer wrote what it had computed from the same.
        unseen = updates[bisect(written, update.read["t"]) :]
        same = [one for one in unseen if one.read["quantity"] == update.read["quantity"]]
        if unseen:
            error = update.read["quantity"] - unseen[-1].write["quantity"]
            times += error != 0
            put_back += max(0, error)
            taken_again += max(0, -error)
        if same and not first:
            first = _story(same[0], update, unseen)
            seconds = (update.write["t"] - update.read["t"]) / SECOND
        updates.append(update)
        written.append(event["t"])
    if not first:
        return None
    found = {"units": units, "counted": counted, "times": times, "events": first}
    found |= {"put_back": put_back, "taken_again": taken_again}
    at = round(first[-1]["t"] / SECOND - started, 3)
    return {**found, "seconds": round(seconds, 3), "at": at}


def _story(a: _Update, b: _Update, unseen: Sequence[_Update]) -> list[Event]:
    named = [{**event, "actor": "buyer A"} for event in a]
    named += [{**event, "actor": "buyer B"} for event in b]
    later = unseen[unseen.index(a) + 1 :]
    if later and later[-1].write["quantity"] < b.write["quantity"]:
        others = later[0].read, later[-1].write
        named += [{**event, "actor": "other buyers"} for event in others]
    return sorted(named, key=lambda event: int(event["t"]))
