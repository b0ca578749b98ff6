"""Find lost updates in a recorded history: writes computed from a number that was out of date."""

from bisect import bisect
from collections.abc import Iterable
from typing import Any, NamedTuple

from loadtest.history.recorder import Event


class _Update(NamedTuple):
    read: Event
    write: Event

    @property
    def units(self) -> int:
        return int(self.read["quantity"] - self.write["quantity"])


def lost_updates(events: Iterable[Event]) -> dict[str, Any] | None:
    """Return the units sold and counted, and the first lost update; None if there is none.

    {"units": 200, "counted": 50, "times": 150, "events": [...]}: the reads and writes of "buyer A"
    and "buyer B". Both read the same number before either wrote, so that the row counted one of the
    two writes. `times` counts the writes that overwrote a quantity which their buyer had not read.
    """
    first: list[Event] = []
    times = 0
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
        times += bool(unseen) and unseen[-1].write["quantity"] != update.read["quantity"]
        if same and not first:
            first = _story(same[0], update)
        updates.append(update)
        written.append(event["t"])
    if not first:
        return None
    counted = max(one.read["quantity"] for one in updates) - updates[-1].write["quantity"]
    units = sum(one.units for one in updates)
    return {"units": units, "counted": counted, "times": times, "events": first}


def _story(a: _Update, b: _Update) -> list[Event]:
    named = [{**event, "actor": "buyer A"} for event in a]
    named += [{**event, "actor": "buyer B"} for event in b]
    return sorted(named, key=lambda event: int(event["t"]))
