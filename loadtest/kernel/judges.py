"""Check a recorded history, and the database after it, against the promises of a guard.

    findings = check(history(folder), dump(sale), Promise.of(locks["redis"].capabilities))
    findings.ok; findings.breaches; findings.facts

The check has no side effects and takes O(n log n) for n events. Facts are counted even where the
guard promises nothing: after a fault that leads to two holders, `facts["overlaps"]` proves it.
"""

import bisect
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from loadtest.kernel.history import Dump, Event
from locking.claims import Capabilities
from shop.models import digest

SECOND = 1_000_000_000
LIVE = ("pending", "paid")
ENDED = ("cancelled", "expired")
INVERSION = SECOND // 4
"""Two claims closer than this may have been sent in the other order than recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The rules that a run must not break."""

    exclusive: bool = True
    """No two leases of a name overlap, by their holders' own deadlines."""
    fencing: bool = True
    """Tokens are unique and grow with the grants, and those in the ledger never fall."""

    @classmethod
    def of(cls, declared: Capabilities) -> Self:
        """Return the promises of a backend."""
        return cls(exclusive=declared.exclusion == "machines", fencing=declared.fencing)


class Hold(NamedTuple):
    """One grant, from `begin` to `end`; its holder assumed to have it until `believed`."""

    name: str
    backend: str
    actor: str
    token: int
    asked: int
    begin: int
    end: int
    believed: int


@dataclass(frozen=True, slots=True)
class Findings:
    """The result: `facts` are numbers, `breaches` sentences that start with the rule's name."""

    breaches: list[str]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Return True if no promise was broken."""
        return not self.breaches


def check(events: Sequence[Event], dump: Dump | None, promise: Promise) -> Findings:
    """Check a history in order of time, and the rows of the sale if they are given."""
    grants = holds(events)
    overlapping = overlaps(grants)
    believing = overlaps(hold._replace(end=hold.believed) for hold in grants)
    facts: dict[str, Any] = {
        "events": len(events),
        "grants": len(grants),
        "lease_overlaps": len(overlapping),
        "overlaps": len(believing),
        "overlap_seconds": round(max((one[2] for one in believing), default=0) / SECOND, 3),
        "inversions": inversions(grants),
        "faults": sum(e["do"] == "fault" and e.get("type") == "start" for e in events),
        "stale_writes": sum(e["do"] == "write" and e.get("error") == "StaleFence" for e in events),
    }
    breaches: list[str] = []
    if promise.exclusive:
        breaches += [
            f"exclusion: {a.actor} and {b.actor} both held {a.name} for {ns / SECOND:.3f} s"
            for a, b, ns in overlapping[:5]
        ]
    if promise.fencing:
        breaches += _tokens(grants)
    if dump is not None:
        breaches += [*_stock(dump), *_answers(events, dump), *_returns(dump)]
        if promise.fencing:
            breaches += _ledger(dump)
    return Findings(breaches, facts)


# --- holders and their times ------------------------------------------------------------------


def holds(events: Iterable[Event]) -> list[Hold]:
    """Return all grants, in the order in which their holders received them."""
    asked: dict[str, int] = {}
    live: dict[str, Hold] = {}
    deadlines: dict[str, int | None] = {}
    by_actor: dict[str, list[str]] = defaultdict(list)
    done: list[Hold] = []
    last = 0

    def end(owner: str, at: int) -> None:
        hold, deadline = live.pop(owner), deadlines.pop(owner)
        lease = at if deadline is None else min(at, max(deadline, hold.begin))
        done.append(hold._replace(end=lease, believed=at))

    for event in events:
        last, owner, kind = event["t"], event.get("owner", ""), event.get("type")
        match event["do"], kind:
            case "acquire", "invoke":
                asked[owner] = last
            case "acquire", "ok":
                begin = asked.pop(owner, last)
                fields = {name: event[name] for name in ("name", "backend", "actor", "token")}
                live[owner] = Hold(**fields, asked=begin, begin=last, end=last, believed=last)
                deadlines[owner] = event["deadline"]
                by_actor[event["actor"]].append(owner)
            case "renew", "ok" if owner in live:
                deadlines[owner] = event["deadline"]
            case ("release", "invoke") | ("lost", _) if owner in live:
                end(owner, last)
            case "fault", "start" if "target" in event:
                for dead in by_actor.pop(event["target"], []):
                    if dead in live:
                        end(dead, last)
    for owner in list(live):
        end(owner, last + 1)  # the last grant of all needs a duration, too
    return sorted(done, key=lambda hold: hold.begin)


def overlaps(grants: Iterable[Hold]) -> list[tuple[Hold, Hold, int]]:
    """Return each overlap of a grant with the longest of the earlier grants of its name."""
    longest: dict[str, Hold] = {}
    found = []
    for hold in grants:
        before = longest.get(hold.name)
        if before is not None and before.end > hold.begin:
            found.append((before, hold, min(before.end, hold.end) - hold.begin))
        if before is None or hold.end > before.end:
            longest[hold.name] = hold
    return [one for one in found if one[2] > 0]


def inversions(grants: Sequence[Hold]) -> int:
    """Count the grants that overtook a claim which was `INVERSION` older."""
    by_name: dict[str, list[Hold]] = defaultdict(list)
    for hold in grants:
        by_name[hold.name].append(hold)
    count = 0
    for line in by_name.values():
        earliest = math.inf  # of those that were granted later
        for hold in reversed(line):
            count += earliest < hold.asked - INVERSION
            earliest = min(earliest, hold.asked)
    return count


def _tokens(grants: Sequence[Hold]) -> list[str]:
    """Check that tokens are unique and above those of earlier grants.

    Earlier means: received before this one was requested, or over before this one began.
    """
    tally = Counter((hold.backend, hold.name, hold.token) for hold in grants)
    breaches = [
        f"tokens: {token} of {name} was given {times} times"
        for (_, name, token), times in tally.items()
        if times > 1
    ]
    by_name: dict[tuple[str, str], list[Hold]] = defaultdict(list)
    for hold in grants:
        by_name[hold.backend, hold.name].append(hold)
    for line in by_name.values():
        received = sorted((hold.begin, hold.token) for hold in line)
        ended = sorted((hold.end, hold.token) for hold in line)
        wrong = [*_falling(line, received, "asked"), *_falling(line, ended, "begin")]
        breaches += [f"tokens: {hold.token} of {hold.name} after {top}" for hold, top in wrong[:3]]
    return breaches


def _falling(
    line: Iterable[Hold], marks: Sequence[tuple[int, int]], since: str
) -> Iterator[tuple[Hold, int]]:
    """Yield the grants with a token below one that was marked before `since`."""
    times = [at for at, _ in marks]
    tops = list(itertools.accumulate((token for _, token in marks), max))
    for hold in line:
        place = bisect.bisect_left(times, getattr(hold, since))
        if place and tops[place - 1] > hold.token:
            yield hold, tops[place - 1]


# --- replies of the shop, and its rows ----------------------------------------------------------


def _stock(dump: Dump) -> list[str]:
    promised = sum(order.quantity for order in dump.orders if order.status in LIVE)
    breaches = []
    if promised > dump.stocked:
        breaches.append(f"oversold: {promised} promised of {dump.stocked}")
    if promised + dump.available != dump.stocked:
        breaches.append(
            f"conservation: {dump.stocked} initial, {dump.available} available, {promised} promised"
        )
    moved = sum(line.delta for line in dump.movements)
    if moved != dump.available:
        breaches.append(f"conservation: the ledger leaves {moved}, the row says {dump.available}")
    return breaches


def _answers(events: Iterable[Event], dump: Dump) -> list[str]:
    """Check that each ok has one order, a fail none, unknown at most one, and replays agree."""
    rows: dict[tuple[int, str], list[str]] = defaultdict(list)
    taken: Counter[int] = Counter()
    for order in dump.orders:
        rows[order.customer, order.key].append(order.number)
        taken[order.customer] += order.quantity if order.status in LIVE else 0
    breaches = [
        f"keys: {len(numbers)} orders of customer {who} under one key"
        for (who, _), numbers in rows.items()
        if len(numbers) > 1
    ]
    breaches += [
        f"limit: customer {who} has {units}, {dump.limit} allowed"
        for who, units in taken.items()
        if units > dump.limit
    ]
    answers: dict[tuple[int, str], str] = {}
    fresh: Counter[tuple[int, str]] = Counter()
    undecided: dict[tuple[str, int], tuple[int, str]] = {}
    for event in events:
        if event["do"] != "buy":
            continue
        form = event["user"], event["key"]
        undecided[event["actor"], event["id"]] = form
        if event["type"] in ("ok", "fail"):
            del undecided[event["actor"], event["id"]]
        number = event["order"] if event["type"] == "ok" else ""
        before = answers.setdefault(form, number)
        if number:
            answers[form] = number
            fresh[form] += not event.get("replayed", False)
            if before not in ("", number):
                breaches.append(f"replays: customer {form[0]} was told two orders")
    breaches += [
        f"replays: customer {who}'s form was new {times} times"
        for (who, _), times in fresh.items()
        if times > 1
    ]
    open_forms = set(undecided.values())
    for (who, key), number in answers.items():
        found = rows.pop((who, digest(key)), [])
        if number and number not in found:
            breaches.append(f"lost: customer {who} was told an order that does not exist")
        if not number and found and (who, key) not in open_forms:
            breaches.append(f"phantom: customer {who} was refused, and has {found[0]}")
    breaches += [f"phantom: order {numbers[0]} has no purchase" for numbers in rows.values()]
    return breaches


def _returns(dump: Dump) -> list[str]:
    """Check that units leave once for each order, and return once for each cancelled order."""
    out: Counter[str] = Counter()
    back: Counter[str] = Counter()
    for line in dump.movements:
        if line.reason == "reserved":
            out[str(line.order)] -= line.delta
        elif line.reason == "returned":
            back[str(line.order)] += line.delta
    breaches = []
    for order in dump.orders:
        due = order.quantity if order.status in ENDED else 0
        if out[order.number] != order.quantity:
            breaches.append(f"ledger: {out[order.number]} went out for order {order.number}")
        if back[order.number] != due:
            breaches.append(f"returns: {back[order.number]} came back of order {order.number}")
    return breaches


def _ledger(dump: Dump) -> list[str]:
    """Check that fences in the ledger never fall; token 0 means a lock without tokens."""
    newest = (0, 0)
    for line in dump.movements:
        fence = (line.epoch, line.token)
        if line.token and fence < newest:
            return [f"fence: the ledger has {fence} after {newest}"]
        newest = max(newest, fence)
    return []
