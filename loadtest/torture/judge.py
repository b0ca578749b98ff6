"""Judge a recorded run; the judges share no assumption about the cause of a failure.

- exclusion: the history is linearizable under the lock's model, where a lease may end by itself
  from its deadline on;
- fencing: tokens grow in the order of the grants, and a guarded number refuses stale writes;
- liveness: after the last fault each lock is granted within a bound;
- leaks: no lock, thread or descriptor is left over;
- errors: no exception but those that the library promises.
"""

import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtest.history import checker
from loadtest.history.checker import Promise
from loadtest.history.linearizability import Model, Verdict, check
from loadtest.history.lock_models import Lock
from loadtest.history.recorder import Event, history
from loadtest.torture.plan import DATABASES, SLOTS, TTL, Plan
from loadtest.torture.workload import REGISTER

BUDGET = 2_000_000
BOUND = TTL + 4.0
"""Seconds after the last fault in which each lock must be granted, on a loaded machine. Where
leases are longer, releases without a reply must have been repeated."""
MORE_DESCRIPTORS, MORE_THREADS = 20, 3
"""By which a process may grow in one run: imported modules, helper threads of the library."""
SHOP_DESCRIPTORS = 40
"""The same of a shop, whose pools keep a connection for each thread that bought at one time."""
EXCLUSION: dict[str, Model] = {
    "reentrant": Lock(reentrant=True),
    "semaphore": Lock(size=SLOTS),
    "read-write": Lock(size=math.inf),
}
FENCED = {
    "reentrant": Lock(reentrant=True, fenced=True),
    **dict.fromkeys(("mutex", "fenced", "asyncio", "switch"), Lock(fenced=True)),
}


class Commands:
    """The judges in a process of their own, beside the proxies of the next run."""

    def judge(self, *, plan: dict[str, Any], folder: str) -> dict[str, Any]:
        """Judge the history of a run."""
        return asdict(judge(Plan.from_json(plan), Path(folder)))


@dataclass
class Judgement:
    """The result of a run."""

    violations: list[str] = field(default_factory=list)
    """Sentences that start with the judge's name."""
    undecided: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


def judge(plan: Plan, folder: Path) -> Judgement:
    """Judge the history of a run, and the numbers that its locks guarded."""
    events, found = without_late_grants(history(folder)), Judgement()
    if plan.excludes():
        model = EXCLUSION.get(plan.workload, Lock())
        # A database that loses the connection of a release may have executed it: LockLost, too.
        known = _undecided_releases(events) if plan.store.server in DATABASES else events
        _linearizable("exclusion", check(with_expiries(known), model, budget=BUDGET), found)
    # Where a lock may have ended unnoticed, a re-entry may still succeed.
    fences = plan.fences() and (plan.excludes() or plan.workload != "reentrant")
    if fences and (fenced := FENCED.get(plan.workload)):
        _linearizable("fencing", check(events, fenced, budget=BUDGET), found)
        if plan.workload != "reentrant":
            tokens = checker.check(events, None, Promise(exclusive=False)).breaches
            found.violations += [f"fencing: {breach}" for breach in tokens]
    if plan.workload == "fenced":
        found.violations += lost_writes(events, folder / REGISTER)
    found.facts = {"events": len(events)}
    return found


def without_late_grants(events: Iterable[Event]) -> list[Event]:
    """Return the history in which a grant that its caller learned of too late may have happened.

    A process that was stopped during its acquire records the grant after the lease's deadline, when
    a later holder may have come and gone.
    """
    return [
        event | {"type": "unknown"}
        if event["do"] == "acquire"
        and event.get("type") == "ok"
        and event["deadline"] is not None
        and event["t"] > event["deadline"]
        else event
        for event in events
    ]


def with_expiries(events: Iterable[Event]) -> list[Event]:
    """Return the history with a release of each lease that its owner did not release.

    It may happen at any time from the deadline on, as the owner last knew it; a process that was
    stopped may learn of its grant only after that.
    """
    known, held = list(events), defaultdict[str, list[Event]](list)
    deadlines: dict[str, int | None] = {}
    killed: dict[str, int] = {}
    for event in known:
        owner = event.get("owner", "")
        match event["do"], event.get("type"):
            case "acquire", "ok":
                held[owner].append(event)
                deadlines[owner] = event["deadline"]
            case "renew", "ok":
                deadlines[owner] = event["deadline"]
            case "release", "ok" if held[owner]:
                held[owner].pop()
            case "fault", "start" if "target" in event:
                killed.setdefault(event["target"], event["t"])
    ends = _ends(held, deadlines, killed)
    return sorted([*known, *ends], key=lambda event: int(event["t"]))


def _undecided_releases(events: Iterable[Event]) -> list[Event]:
    """Return the history in which a release that raised LockLost may have happened."""
    lost = {"do": "release", "type": "fail"}
    return [
        event | {"type": "unknown"} if lost.items() <= event.items() else event for event in events
    ]


def _ends(
    held: dict[str, list[Event]], deadlines: dict[str, int | None], killed: dict[str, int]
) -> Iterator[Event]:
    """Yield the calls of the releases; one without a deadline ends with its process."""
    number = 0
    for owner, grants in held.items():
        for grant in grants:
            at = deadlines[owner]
            if at is None:
                at = killed.get(grant["actor"])
            if at is not None:
                number += 1
                end = {"do": "release", "type": "invoke", "id": number, "actor": "expiry"}
                yield {**end, "t": at, "name": grant["name"], "owner": owner}


def _linearizable(name: str, verdicts: Sequence[Verdict], found: Judgement) -> None:
    for one in verdicts:
        found.undecided += one.verdict == "undecided"
        if one.verdict == "illegal" and one.wrong is not None:
            event = one.wrong.event
            found.violations.append(
                f"{name}: no order of the operations on {one.name} explains {one.wrong.do} by "
                f"{event['owner']} ({one.wrong.outcome}, token {event.get('token')})"
            )


def lost_writes(events: Sequence[Event], register: Path) -> list[str]:
    """Return the names of which a write was overwritten unseen."""
    added: dict[str, list[int]] = defaultdict(list)
    for event in events:
        if event["do"] == "add":
            added[event["name"]].append(event["value"])
    killed = sum("target" in event for event in events if event["do"] == "fault")
    wrong = []
    with closing(sqlite3.connect(register)) as opened:
        rows = opened.execute("SELECT name, value FROM register").fetchall()
    for name, value in rows:
        unseen = value - len(added[name])
        if len(set(added[name])) < len(added[name]) or not 0 <= unseen <= 2 * killed:
            wrong.append(f"fencing: {len(added[name])} writes of {name} left the number {value}")
    return wrong


def judge_ends(plan: Plan, probe: dict[str, Any], ends: Sequence[dict[str, Any]]) -> list[str]:
    """Judge what is left after a run: the locks, and each process's resources before and after."""
    wrong = [f"liveness: {name} was not granted" for name in probe["missing"]]
    for end in ends:
        wrong += [f"leaks: {end['actor']} still holds {name}" for name in end["held"]]
        wrong += [f"leaks: the store still lists {name}" for name in end["listed"]]
        descriptors = SHOP_DESCRIPTORS if plan.terms else MORE_DESCRIPTORS
        for what, most in (("descriptors", descriptors), ("threads", MORE_THREADS)):
            before, after = end["before"][what], end["resources"][what]
            if after > before + most:
                names = ", ".join(end["threads"])
                wrong.append(f"leaks: {end['actor']} had {before} {what}, now {after} ({names})")
    return wrong
