"""Handwritten histories: one that keeps every promise, and for each judge those that it rejects."""

import re
from pathlib import Path

import pytest

from loadtest.kernel.history import SECOND, Dump, Event, OrderRow, Recorder, history
from loadtest.kernel.judges import Run, facts, judge
from shop.administration.audit import StockAudit
from shop.models import digest


def told(script: str) -> list[Event]:
    """Return a history, a tenth of a second a word.

    a? asks, a=7 is granted token 7 (a=7~2: for 0.2 s), a. asks to release, a! notices the loss,
    a# is killed. "..." is a second.
    """
    events, now = list[Event](), 0
    for word in script.split():
        if word == "...":
            now += SECOND
            continue
        now += SECOND // 10
        owner, sign, token, ttl = re.findall(r"(.)(.)(\d*)~?(\d*)", word)[0]
        kinds = {"?": ("acquire", "invoke"), "=": ("acquire", "ok"), ".": ("release", "invoke")}
        do, kind = {**kinds, "!": ("lost", ""), "#": ("fault", "start")}[sign]
        event: Event = {"t": now, "actor": f"actor {owner}", "do": do, "type": kind}
        if do == "fault":
            event["target"] = event["actor"]
        else:
            event |= {"name": "n", "owner": owner, "backend": "redis"}
        if sign == "=":
            deadline = now + int(ttl) * SECOND // 10 if ttl else None
            event |= {"token": int(token), "deadline": deadline}
        events.append(event)
    return events


def rules(found: list[str]) -> set[str]:
    return {finding.partition(":")[0] for finding in found}


@pytest.mark.parametrize(
    ("script", "broken", "overlaps"),
    [
        ("a? a=1 a. b? b=2 b.", "", (0, 0)),
        ("a=1 b=2 a.", "exclusion", (1, 1)),
        ("a=1 a. b=1 b.", "tokens", (0, 0)),
        ("a=2 a. b? b=1 b.", "tokens", (0, 0)),
        ("b? a=2 a. b=1~9 b.", "tokens", (0, 0)),
        ("b? a=2 a. b=1 b.", "", (0, 0)),  # its session may have ended before b learned of it
        ("a=1 a# b=2", "", (0, 0)),  # a killed process believes nothing
        ("a=1~2 ... b=2 a.", "", (1, 0)),  # a pause past the lease is no fault of the lock
        ("a=1 a! b=2 a.", "", (1, 0)),  # a session has ended; its holder goes on
        ("a=1 a! b=2", "", (0, 0)),
        ("a=1 a=2 a. a.", "", (0, 0)),  # a holder may acquire again
    ],
)
def test_leases_and_tokens(script: str, broken: str, overlaps: tuple[int, int]) -> None:
    run = Run(told(script))
    assert rules(judge(run)) == ({broken} if broken else set())
    assert (facts(run)["overlaps"], facts(run)["lease_overlaps"]) == overlaps
    assert judge(Run(run.events, exclusive=False, fencing=False)) == []


def test_grant_before_an_older_claim_counts_as_inversion() -> None:
    assert facts(Run(told("a? ... b? b=1 b. a=2")))["inversions"] == 1
    assert facts(Run(told("a? b? b=1 b. a=2")))["inversions"] == 0


def bought(user: int, *ends: tuple[str, str]) -> list[Event]:
    """Return the attempts of a customer; each end is a type and an order."""
    form = {"t": user, "actor": "p", "do": "buy", "user": user, "key": "k", "quantity": 1}
    events = []
    for number, (kind, order) in enumerate(ends):
        events.append({**form, "id": number, "type": "invoke"})
        if kind:
            said = {"order": order.lower().strip("*"), "replayed": order.endswith("*")}
            events.append({**form, "id": number, "type": kind, **said})
    return events


GOOD = (
    *bought(1, ("unknown", ""), ("ok", "a*")),
    *bought(2, ("ok", "b")),
    *bought(3, ("fail", "")),
    *bought(4, ("", "")),
)
"""The first customer crashed and sent the form again, the third was refused."""


def rows(*orders: str, breach: str = "", fences: str = "12", key: str = "k") -> Dump:
    """Return a sale; an order "a1" is that of customer 1."""
    names = ("initial", "available", "held", "sold", "oversold", "lost", "stale_writes_refused")
    audit = StockAudit(sale="s", breaches=(breach,) * bool(breach), **dict.fromkeys(names, 0))
    found = [OrderRow(one[:-1], int(one[-1]), digest(key), 1, "pending") for one in orders]
    return Dump(audit, 1, found, [(1, int(token)) for token in fences])


def another_key(dump: Dump) -> Dump:
    return dump._replace(orders=[*dump.orders, OrderRow("c", 1, digest("other"), 1, "paid")])


@pytest.mark.parametrize(
    ("events", "dump", "broken"),
    [
        (GOOD, rows("a1", "b2"), set()),
        (GOOD, rows("a1", "b2", "c4"), set()),  # whose answer is unknown
        (GOOD, rows("a1", "b2", breach="oversold"), {"audit"}),
        (GOOD, rows("a1", "b2", fences="2031"), {"fence"}),
        (GOOD, rows("a1", "b2", fences="1002"), set()),
        (GOOD, rows("a1", "c1", "b2"), {"keys", "limit"}),
        (GOOD, another_key(rows("a1", "b2")), {"limit", "phantom"}),
        (GOOD, rows("a1"), {"lost"}),
        (GOOD, rows("a1", "b2", "c3"), {"phantom"}),
        (GOOD, rows("a1", "b2", "c9"), {"phantom"}),
        (bought(1, ("unknown", ""), ("fail", "")), rows("a1"), {"phantom"}),
        (bought(1, ("fail", ""), ("unknown", "")), rows("a1"), set()),
        (bought(1, ("ok", "a"), ("ok", "b*")), rows("a1"), {"replays", "lost"}),
        (bought(1, ("ok", "a"), ("ok", "a")), rows("a1"), {"replays"}),
    ],
)
def test_answers_and_rows(events: list[Event], dump: Dump, broken: set[str]) -> None:
    assert rules(judge(Run(events, dump))) == broken


def test_half_a_line_of_a_killed_process_is_left_out(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "a")
    recorder.note("lost", name="n", owner="o")
    recorder.close()
    (tmp_path / "other.jsonl").write_text('{"t": 1, "actor": "b", "do"')
    (event,) = history(tmp_path)
    assert (event["actor"], event["do"]) == ("a", "lost")
