"""Judge the records of a run, and what it left; the judges assume no cause of a failure.

docs/reference/verify.md says what each judge of locks and of shops requires.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.kernel.history import Event, history
from loadtest.kernel.holds import holds
from loadtest.kernel.judges import Run, tokens
from shop.models import Order, digest
from shop.purchase.admission import MAX_AGE
from verification.histories.linearizability import Model, Operation, check, operations_of
from verification.histories.lock_models import SOLD_OUT, Lock, Stock
from verification.torture.catalogue import ALIAS, CONTROLS, DATABASES, TTL
from verification.torture.plan import Plan
from verification.torture.stock import PROBE
from verification.torture.workload import SLOTS

BUDGET = 2_000_000
BOUND = TTL + 4.0
"""Seconds after the last fault in which each lock must be granted, on a loaded machine. Where
leases are longer, releases without a reply must have been repeated."""
SHOP_BOUND = BOUND + 15.0
"""The same of a shop, where a queued sale may have to be loaded first."""
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
    **dict.fromkeys(("mutex", "asyncio", "switch"), Lock(fenced=True)),
}
ENDS = {"cancel": Order.Status.CANCELLED, "pay": Order.Status.PAID}
"""The last status of an order after a change that was acknowledged."""
Key = tuple[int, str]
"""A customer, and the idempotency key of a form."""


@dataclass
class Judgement:
    """The result of a run."""

    violations: list[str] = field(default_factory=list)
    """Sentences that start with the judge's name."""
    undecided: int = 0

    def linearizable(self, name: str, events: Iterable[Event], model: Model) -> None:
        """Check a history; `name` is that of the judge."""
        for one in check(events, model, budget=BUDGET):
            self.undecided += one.verdict == "undecided"
            if one.wrong is not None:
                self.violations.append(f"{name}: no order explains {_described(one.wrong)}")


def _described(wrong: Operation) -> str:
    shown = ("name", "owner", "token", "user", "key", "order", "error")
    fields = {name: wrong.event[name] for name in shown if name in wrong.event}
    return f"{wrong.do} ({wrong.outcome}) of {fields}"


def judge(plan: Plan, folder: Path) -> Judgement:
    """Judge the history of a run, and the numbers that its locks guarded."""
    events = [*_undecided(history(folder), is_lost=False)]
    found, excludes = Judgement(), plan.excludes()
    if excludes:
        # Of LockLost, too: a database that loses the connection of a release may have executed it,
        # and of RedLock's masters some, of which a claim needs no more to have a majority.
        is_lost = plan.store.server in DATABASES or plan.backend == "redlock"
        known = [*_undecided(events, is_lost=is_lost)]
        found.linearizable("exclusion", with_expiries(known), EXCLUSION.get(plan.workload, Lock()))
    # Where a lock may have ended unnoticed, a re-entry may still succeed.
    fences = plan.store.capabilities.fencing and (excludes or plan.workload != "reentrant")
    if fences and (fenced := FENCED.get(plan.workload)):
        found.linearizable("fencing", events, fenced)
        if plan.workload != "reentrant":
            # The model frees a lock whose lease expired, but not its token.
            found.violations += [f"fencing: {one}" for one in tokens(Run(events=events))]
    return found


def _undecided(events: Iterable[Event], *, is_lost: bool) -> Iterator[Event]:
    """Yield the history in which operations may have happened although their ends say otherwise.

    A grant that its caller learned of only after the lease's deadline: it was stopped during its
    acquire, and a later holder may have come and gone. With `is_lost`, a release that was lost.
    """
    for event in events:
        end, deadline = (event["do"], event.get("type")), event.get("deadline")
        is_late = end == ("acquire", "ok") and deadline is not None and event["t"] > deadline
        is_open = is_late or (is_lost and end == ("release", "fail"))
        yield event | {"type": "unknown"} if is_open else event


def with_expiries(events: Sequence[Event]) -> list[Event]:
    """Return the history with a release of each lease that its owner did not release.

    It may happen at any time from the deadline on, as the owner last knew it; a lease without a
    deadline ends with its process.
    """
    told = [one for one in events if (one["do"], one.get("type")) != ("release", "fail")]
    kept = [hold for hold in holds(told) if hold.freed is None]
    call = {"do": "release", "type": "invoke", "actor": "expiry"}
    ends = [
        {**call, "id": number, "t": at, "name": hold.name, "owner": hold.owner}
        for number, hold in enumerate(kept)
        if (at := hold.killed if hold.deadline is None else hold.deadline) is not None
    ]
    return sorted([*events, *ends], key=lambda event: int(event["t"]))


def judge_ends(plan: Plan, probe: dict[str, Any], ends: Sequence[dict[str, Any]]) -> list[str]:
    """Judge what is left after a run: the locks, and each process's resources before and after."""
    wrong = [f"liveness: {name} was not granted" for name in probe["missing"]]
    growth = {"descriptors": SHOP_DESCRIPTORS if plan.terms else MORE_DESCRIPTORS}
    growth["threads"] = MORE_THREADS
    for end in ends:
        wrong += [f"leaks: {end['actor']} still holds {name}" for name in end["held"]]
        wrong += [f"leaks: the store still lists {name}" for name in end["listed"]]
        for what, most in growth.items():
            before, after = end["before"][what], end["resources"][what]
            if after > before + most:
                names = ", ".join(end["threads"])
                wrong.append(f"leaks: {end['actor']} had {before} {what}, now {after} ({names})")
    return wrong


# --- shops ---


def judge_sales(plan: Plan, folder: Path, sales: dict[str, Any]) -> Judgement:
    """Judge the answers of a run and the sales that it left."""
    events = history(folder)
    found = Judgement()
    sent: dict[str, dict[Key, list[Operation]]] = {name: defaultdict(list) for name in sales}
    for one in operations_of(events):
        if one.do in ("buy", *ENDS):
            sent[one.event["sale"]][one.event["user"], one.event["key"]].append(one)
    for name, sale in sales.items():
        found.violations += [f"audit: {name}: {breach}" for breach in sale["breaches"]]
        found.violations += [f"promises: {name}: {one}" for one in _broken(plan, sale, sent[name])]
        found.violations += [f"promises: {name}: {one}" for one in _unasked(name, sale, sent[name])]
        units = _units(plan, sale, sent[name])
        found.linearizable(f"units: {name}", units, Stock(units=sale["stocked"]))
    if found.violations:
        found.violations.append(f"terms: {plan.terms}")
    return found


def _broken(plan: Plan, sale: dict[str, Any], sent: dict[Key, list[Operation]]) -> Iterator[str]:
    """Yield the promises to customers that the rows break."""
    rows = _rows(sale)
    if len(rows) < len(sale["orders"]):
        yield "a key has two orders"
    taken: Counter[int] = Counter()
    for _, customer, _, quantity, status in sale["orders"]:
        taken[customer] += quantity * (status in Order.LIVE)
    yield from (f"customer {one} has {n} units" for one, n in taken.items() if n > sale["limit"])
    terms, is_exclusive = plan.terms, _is_exclusive(plan)
    assert terms is not None
    for (user, key), tries in sent.items():
        buys = [one for one in tries if one.do == "buy"]
        answers = {one.event["order"] for one in buys if one.outcome == "ok"}
        if len(answers) > 1:
            yield f"key {key} got {len(answers)} different responses"
        row = rows.get((user, digest(key)))
        if row and not terms.is_queued and any(row[0] not in answer for answer in answers):
            yield f"key {key} was told {answers}, but has order {row[0]}"
        number = digest(f"{user}.{sale['id']}.{digest(key)}")[:16].upper()
        reason = sale["rejected"].get(number)
        if answers and not row and (reason is None or is_exclusive):
            yield f"key {key} was acknowledged, but has no order ({reason})"
        # Unknown ones return at infinity; without any, nothing can have bought after a refusal.
        others = (one.returned for one in buys if one.outcome != "fail")
        bought = min(others, default=-math.inf)
        late = [one for one in buys if one.outcome == "fail" and one.called > bought]
        told = {one.event["error"] for one in late}
        if row and (SOLD_OUT[0] in told or (told and bought == -math.inf)):
            yield f"key {key} was refused ({', '.join(sorted(told))}), but has order {row[0]}"
        if row and row[3] != (asked := tries[0].event["quantity"]):
            yield f"key {key} asked for {asked} units, its order has {row[3]}"
        for one in tries:
            is_done = one.outcome == "ok" and one.do in ENDS
            if is_done and (row is None or row[4] != ENDS[one.do]):
                yield f"key {key}: its {one.do} was acknowledged, its order is {row and row[4]}"


def _is_exclusive(plan: Plan) -> bool:
    """Return whether the processes of the shop share a lock."""
    return plan.terms is not None and plan.terms.lock == ALIAS and plan.backend not in CONTROLS


def _unasked(name: str, sale: dict[str, Any], sent: dict[Key, list[Operation]]) -> Iterator[str]:
    """Yield the orders without a form; the last one of a sale is that of the run itself."""
    forms = {(user, digest(key)) for user, key in sent}
    for key, row in _rows(sale).items():
        if key not in forms and key[1] != digest(PROBE.format(name)):
            yield f"order {row[0]} of customer {row[1]} has no form"


def _rows(sale: dict[str, Any]) -> dict[Key, Sequence[Any]]:
    return {(row[1], row[2]): row for row in sale["orders"]}


def _units(plan: Plan, sale: dict[str, Any], sent: dict[Key, list[Operation]]) -> list[Event]:
    """Return the history for the model: each key once, with the outcome that its rows show.

    A refusal may be as old as the sale that a process remembers. Those of queued sales are left
    out: units that are returned are offered again later. Without a shared lock, the reconciliation
    may offer a unit twice: such a reservation is rejected, or gets a unit that is returned.
    """
    rows, events = _rows(sale), list[Event]()
    assert plan.terms is not None
    waits = plan.terms.is_queued and not _is_exclusive(plan)

    def add(do: str, called: float, returned: float, kind: str = "ok", **fields: Any) -> None:
        call = {"actor": "key", "id": len(events), "do": do, "t": called, "type": "invoke"}
        events.append({**call, **fields})
        if returned < math.inf:
            events.append({**call, **fields, "t": returned, "type": kind})

    for (user, key), tries in sent.items():
        form = {"user": user, "key": key, "quantity": tries[0].event["quantity"]}
        row = rows.get((user, digest(key)))
        buys = [one for one in tries if one.do == "buy" and one.outcome != "fail"]
        if row and buys:
            cancels = [one for one in tries if one.do == "cancel" and one.outcome != "fail"]
            called, returned = _span(buys)
            if waits:
                returned = min((one.called for one in cancels), default=math.inf)
            add("buy", called, returned, order=row[0], **form)
            if cancels and row[4] == Order.Status.CANCELLED:
                add("cancel", *_span(cancels), order=row[0])
        for one in tries:
            if one.event.get("error") == SOLD_OUT[0] and not plan.terms.is_queued:
                called = one.called - round(MAX_AGE * 1e9)
                add("buy", called, one.returned, "fail", error=SOLD_OUT[0], **form)
    return sorted(events, key=lambda event: int(event["t"]))


def _span(tries: Iterable[Operation]) -> tuple[int, float]:
    """Return the first call and the first successful return."""
    known = list(tries)
    ends = [one.returned for one in known if one.outcome == "ok"]
    return min(one.called for one in known), min(ends, default=math.inf)
