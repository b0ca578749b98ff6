"""Hand-made histories: one that keeps every promise, and for each rule one that breaks it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from loadtest.kernel.history import Dump, Event, Movement, OrderRow, Recorder, history
from loadtest.kernel.judges import SECOND, Promise, check
from shop.models import digest

EVERYTHING = Promise()


class Story:
    """A history that is written down, a tenth of a second a line."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = 0

    def say(self, do: str, type: str = "", actor: str = "p", **fields: Any) -> None:
        self.now += SECOND // 10
        event = {"t": self.now, "actor": actor, "do": do, "type": type}
        self.events.append(event | fields)

    def ask(self, owner: str) -> None:
        self.say("acquire", "invoke", **lock_of(owner))

    def take(self, owner: str, token: int, ttl: float | None = None, actor: str = "p") -> None:
        deadline = None if ttl is None else self.now + round(ttl * SECOND)
        self.say("acquire", "ok", actor, token=token, deadline=deadline, **lock_of(owner))

    def hold(self, owner: str, token: int) -> None:
        self.ask(owner)
        self.take(owner, token)
        self.say("release", "invoke", name="n", owner=owner)

    def buy(self, user: int, type: str, order: str = "", **fields: Any) -> None:
        form = {"id": user, "user": user, "key": "k", "quantity": 1}
        self.say("buy", "invoke", **form)
        if type:
            self.say("buy", type, order=order, **form, **fields)


def lock_of(owner: str) -> dict[str, str]:
    return {"name": "n", "owner": owner, "backend": "redis"}


def order(number: str, customer: int, status: str = "pending", key: str = "k") -> OrderRow:
    return OrderRow(number, customer, digest(key), 1, status)


def went(number: str, token: int = 0) -> Movement:
    return Movement(-1, "reserved", number, 1, token)


def books(*orders: OrderRow, moves: list[Movement] | None = None, left: int | None = None) -> Dump:
    """Two pieces, and what became of them."""
    if moves is None:
        moves = [went(one.number, place) for place, one in enumerate(orders, 1)]
    moves = [Movement(2, "stocked", None, 0, 0), *moves]
    left = sum(line.delta for line in moves) if left is None else left
    return Dump(2, left, 1, list(orders), moves)


def good_story() -> tuple[Story, Dump]:
    """Two buy, one of them twice with the same form and after a crash; the third is late."""
    story = Story()
    story.hold("a", 1)
    story.buy(1, "unknown")
    story.say("fault", "start", what="crash")
    story.say("fault", "end", what="crash")
    story.buy(1, "ok", "A", replayed=True)
    story.hold("b", 2)
    story.buy(2, "ok", "B", replayed=False)
    story.buy(3, "fail")
    story.buy(4, "")
    return story, books(order("A", 1), order("B", 2))


def test_a_history_that_keeps_every_promise() -> None:
    story, dump = good_story()
    findings = check(story.events, dump, EVERYTHING)
    assert findings.ok, findings.breaches
    assert findings.facts["grants"] == 2
    assert findings.facts["overlaps"] == findings.facts["lease_overlaps"] == 0


@pytest.mark.parametrize(
    ("dump", "rule"),
    [
        (books(order("A", 1), order("B", 2), order("C", 4)), "oversold"),
        (books(order("A", 1), order("B", 2), left=1), "conservation"),
        (books(order("A", 1), order("A2", 1)), "keys"),
        (books(order("A", 1), order("A2", 1, key="other")), "limit"),
        (books(order("A", 1)), "lost"),
        (books(order("A", 1), order("B", 2), order("C", 3)), "phantom"),
        (books(order("A", 1), order("B", 2), order("C", 9)), "phantom"),
        (books(order("A", 1), order("B", 2), moves=[went("A"), went("A")]), "ledger"),
        (books(order("A", 1), order("B", 2, "cancelled")), "returns"),
        (books(order("A", 1), order("B", 2), moves=[went("A", 2), went("B", 1)]), "fence"),
    ],
)
def test_a_database_that_breaks_one(dump: Dump, rule: str) -> None:
    found = check(good_story()[0].events, dump, EVERYTHING).breaches
    assert any(breach.startswith(f"{rule}:") for breach in found), found


def test_a_cancelled_order_whose_piece_came_back() -> None:
    moves = [went("A", 1), went("B", 2), Movement(1, "returned", "B", 1, 3)]
    dump = books(order("A", 1), order("B", 2, "cancelled"), moves=moves)
    assert check(good_story()[0].events, dump, EVERYTHING).ok


def overlapping() -> Story:
    story = Story()
    story.take("a", 1)
    story.take("b", 2, actor="q")
    story.say("release", "invoke", name="n", owner="a")
    return story


def equal_tokens() -> Story:
    story = Story()
    story.hold("a", 1)
    story.hold("b", 1)
    return story


def falling_tokens() -> Story:
    story = Story()
    story.hold("a", 2)
    story.hold("b", 1)
    return story


def overtaken() -> Story:
    story = Story()
    story.ask("first")
    story.now += SECOND
    story.hold("second", 1)
    story.take("first", 2)
    return story


def told_two_orders() -> Story:
    story = Story()
    story.buy(1, "ok", "A", replayed=False)
    story.buy(1, "ok", "B", replayed=True)
    return story


def new_twice() -> Story:
    story = Story()
    story.buy(1, "ok", "A", replayed=False)
    story.buy(1, "ok", "A", replayed=False)
    return story


@pytest.mark.parametrize(
    ("story", "rule"),
    [
        (overlapping(), "exclusion"),
        (equal_tokens(), "tokens"),
        (falling_tokens(), "tokens"),
        (told_two_orders(), "replays"),
        (new_twice(), "replays"),
    ],
)
def test_a_history_that_breaks_one(story: Story, rule: str) -> None:
    dump = books(order("A", 1)) if rule == "replays" else None
    found = check(story.events, dump, EVERYTHING).breaches
    assert any(breach.startswith(f"{rule}:") for breach in found), found


def test_what_is_not_promised_is_only_counted() -> None:
    findings = check(overlapping().events, None, Promise(exclusive=False, fencing=False))
    assert findings.ok
    assert findings.facts["lease_overlaps"] == 1
    assert findings.facts["overlap_seconds"] == 0.1


def test_grant_before_an_older_claim_counts_as_inversion() -> None:
    assert check(overtaken().events, None, EVERYTHING).facts["inversions"] == 1


def test_a_holder_that_is_late_believes_longer_than_it_holds() -> None:
    """A pause past the lease is no fault of the lock's: counted, and no breach."""
    story = Story()
    story.take("a", 1, ttl=0.15)
    story.now += SECOND
    story.take("b", 2)
    story.say("release", "invoke", name="n", owner="a")
    findings = check(story.events, None, EVERYTHING)
    assert findings.ok, findings.breaches
    assert (findings.facts["overlaps"], findings.facts["lease_overlaps"]) == (1, 0)


def test_a_killed_holder_believes_nothing_any_more() -> None:
    story = Story()
    story.take("a", 1, actor="p7")
    story.say("fault", "start", what="kill", target="p7")
    story.take("b", 2, actor="p8")
    assert check(story.events, None, Promise(exclusive=True)).ok


def test_half_a_line_of_a_killed_process_is_left_out(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "a")
    recorder.note("lost", name="n", owner="o")
    recorder.close()
    (tmp_path / "other.jsonl").write_text('{"t": 1, "actor": "b", "do"')
    (event,) = history(tmp_path)
    assert (event["actor"], event["do"]) == ("a", "lost")


def test_it_needs_less_than_a_kilobyte_an_event(tmp_path: Path) -> None:
    """From the files to the findings, at its peak."""
    recorder, rounds = Recorder(tmp_path), 2500
    moves = []
    for number in range(rounds):
        lock = {"name": "sale:1", "owner": f"host:1:{number:x}:0123456789abcdef", "backend": "r"}
        form = {"id": number, "user": number, "key": f"sale-1:{number}", "quantity": 1}
        recorder.note("buy", "invoke", **form)
        recorder.note("acquire", "invoke", id=number, **lock)
        recorder.note("acquire", "ok", id=number, token=number + 1, deadline=10**15, **lock)
        recorder.note("release", "invoke", id=number, name="sale:1", owner=lock["owner"])
        recorder.note("buy", "ok", order=f"{number}", replayed=False, **form)
        moves.append(Movement(-1, "reserved", f"{number}", 1, number + 1))
    orders = [OrderRow(f"{n}", n, digest(f"sale-1:{n}"), 1, "paid") for n in range(rounds)]
    moves = [Movement(rounds, "stocked", None, 0, 0), *moves]

    def measure() -> float:
        tracemalloc.start()
        events = history(tmp_path)
        findings = check(events, Dump(rounds, 0, 1, orders, moves), Promise())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert findings.ok, findings.breaches[:3]
        assert len(events) == 5 * rounds
        return peak / len(events)

    # The best of two: Python's table of interned strings may grow meanwhile, by megabytes.
    assert min(measure(), measure()) < 1000
