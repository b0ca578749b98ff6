"""Judges of a recorded run: each returns what is broken, and none has a side effect.

    run = Run(history(folder), dump(sale), exclusive=True, fencing=False)
    judge(run)              # the findings of all judges; none: the run is ok
    facts(run)              # numbers, counted even where the guard promises nothing

After a fault that leads to two holders, `facts(run)["overlaps"]` proves it.

A new judge is a generator of sentences that start with its name. In `promised`, it judges every
load test whose lock makes the promise; a scenario calls it with `Run(history(testbed.folder))`.
Handwritten histories in `tests/loadtest/kernel/test_judges.py` show what it rejects. They have no
`id`: pair an acquire with its end by actor and owner, as `holds` does, and expect either without
the other.
"""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice, pairwise
from operator import attrgetter
from typing import Any

from loadtest.kernel.history import SECOND, Dump, Event
from loadtest.kernel.holds import Hold, Lease, holds, overlaps
from shop.models import Order, digest

INVERSION = SECOND // 4
"""Two claims closer than this may have been sent in the other order than recorded."""
MOST = 5
"""Findings of one judge; a run that breaks a promise often breaks it everywhere."""


@dataclass(frozen=True)
class Run:
    """A history in order of time, the rows of its sale if there is one, and the lock's promises."""

    events: Sequence[Event]
    dump: Dump | None = None
    exclusive: bool = True
    """No two leases of a name overlap, by their holders' own deadlines."""
    fencing: bool = True
    """Tokens are unique and grow with the grants, and those in the ledger never fall."""

    @cached_property
    def holds(self) -> list[Hold]:
        """The grants of the history."""
        return holds(self.events)


Judge = Callable[[Run], Iterable[str]]


def judge(run: Run) -> list[str]:
    """Return the findings of all judges that concern a promise of the run."""
    promised: dict[Judge, object] = {
        exclusion: run.exclusive,
        tokens: run.fencing,
        audit: run.dump,
        answers: run.dump,
        fences: run.dump and run.fencing,
    }
    chosen = [one for one, applies in promised.items() if applies]
    return [finding for one in chosen for finding in islice(one(run), MOST)]


def facts(run: Run) -> dict[str, Any]:
    """Return the numbers of a run."""
    believing = overlaps(run.holds, "believed")
    kinds = Counter((e["do"], e.get("type"), e.get("error")) for e in run.events)
    return {
        "events": len(run.events),
        "grants": len(run.holds),
        "lease_overlaps": len(overlaps(run.holds)),
        "overlaps": len(believing),
        "overlap_seconds": round(max((one[2] for one in believing), default=0) / SECOND, 3),
        "inversions": inversions(run.holds),
        "faults": kinds["fault", "start", None],
        "stale_writes": kinds["write", "fail", "StaleFence"],
    }


def inversions(grants: Iterable[Hold]) -> int:
    """Count the grants that overtook a claim which was `INVERSION` older."""
    count, earliest = 0, defaultdict[str, float](lambda: math.inf)
    for hold in reversed(list(grants)):
        count += earliest[hold.name] < hold.asked - INVERSION
        earliest[hold.name] = min(earliest[hold.name], hold.asked)
    return count


# --- locks -----------------------------------------------------------------------------------


def exclusion(run: Run) -> Iterator[str]:
    """Find two leases of a name at a time."""
    for a, b, ns in overlaps(run.holds):
        yield f"exclusion: {a.actor} and {b.actor} both held {a.name} for {ns / SECOND:.3f} s"


def tokens(run: Run) -> Iterator[str]:
    """Find tokens that were given twice, or that are not above those of earlier grants.

    Earlier means: received before this one was requested, or over before this one began. A grant
    without a deadline may have ended with its session before its caller learned of it.
    """
    lines: dict[tuple[str, str], list[Hold]] = defaultdict(list)
    for hold in run.holds:
        lines[hold.backend, hold.name].append(hold)
    for line in lines.values():
        for token, times in Counter(hold.token for hold in line).items():
            if times > 1:
                yield f"tokens: {token} of {line[0].name} was given {times} times"
        earlier = []
        for done in ("begin", "end"):
            marks = sorted((getattr(hold, done), hold.token) for hold in line)
            earlier.append((marks, [-math.inf, *accumulate((mark[1] for mark in marks), max)]))
        for hold in line:
            since = (hold.asked,), (hold.asked if hold.deadline is None else hold.begin,)
            tops = [
                top[bisect_left(marks, at)] for (marks, top), at in zip(earlier, since, strict=True)
            ]
            if max(tops) > hold.token:
                yield f"tokens: {hold.token} of {hold.name} after {max(tops)}"


def contradictions(leases: Iterable[Lease]) -> Iterator[str]:
    """Find what no store grants: a lease before an earlier one has ended, or with a lower fence."""
    longest: dict[str, Lease] = {}
    newest: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for lease in sorted(leases, key=attrgetter("begin")):
        before = longest.get(lease.store)
        if before and before.end > lease.begin:
            holders = f"{before.holder} and {lease.holder}"
            seconds = (before.end - lease.begin) / SECOND
            yield f"{lease.store}: {holders} have leases for {seconds:.3f} s"
        if lease.fence[1] and lease.fence <= newest[lease.store]:
            yield f"{lease.store}: {lease.holder} has no higher fence than the one before"
        newest[lease.store] = max(newest[lease.store], lease.fence)
        longest[lease.store] = max(before or lease, lease, key=attrgetter("end"))


# --- the rows of a sale, and what its buyers were told -----------------------------------------


def audit(run: Run) -> Iterator[str]:
    """Find what the audit found of units, stock row and ledger."""
    for breach in run.dump.audit.breaches if run.dump else ():
        yield f"audit: {breach}"


def fences(run: Run) -> Iterator[str]:
    """Find a fence in the ledger below an earlier one; token 0 means a lock without tokens."""
    marked = [fence for fence in run.dump.fences if fence[1]] if run.dump else []
    for before, fence in pairwise(marked):
        if fence < before:
            yield f"fence: the ledger has {fence} after {before}"


def answers(run: Run) -> Iterator[str]:
    """Find an ok without an order, a last fail with one, a second order, replays that differ."""
    assert run.dump is not None
    rows: dict[tuple[int, str], list[str]] = defaultdict(list)
    units: Counter[int] = Counter()
    for order in run.dump.orders:
        rows[order.customer, order.key].append(order.number)
        units[order.customer] += order.quantity * (order.status in Order.LIVE)
    for (who, _key), numbers in rows.items():
        if len(numbers) > 1:
            yield f"keys: {len(numbers)} orders of customer {who} under one key"
    for who, taken in units.items():
        if taken > run.dump.limit:
            yield f"limit: customer {who} has {taken}, {run.dump.limit} allowed"
    forms: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in run.events:
        if event["do"] == "buy":
            forms[event["user"], event["key"]].append(event)
    for (who, key), tries in forms.items():
        orders = [event for event in tries if event["type"] == "ok"]
        told = {event["order"] for event in orders}
        fresh = sum(not event.get("replayed") for event in orders)
        found = rows.pop((who, digest(key)), [])
        if len(told) > 1:
            yield f"replays: customer {who} was told {len(told)} orders"
        if fresh > 1:
            yield f"replays: customer {who}'s form was new {fresh} times"
        if told - set(found):
            yield f"lost: customer {who} was told an order that does not exist"
        if found and not told and tries[-1]["type"] == "fail":
            yield f"phantom: customer {who} was refused, and has {found[0]}"
    for numbers in rows.values():
        yield f"phantom: order {numbers[0]} has no purchase"
