"""Queued sales: `shop.reservations` with its stream, two order writers and the reconciliation.

A customer reserves a unit in Redis. A writer takes the reservation from the stream, commits its
order under the lock, and then settles it. The reconciliation mirrors the stock row into Redis.
"""

from typing import Any, NamedTuple

from verification.protocols.search import Moves, Protocol, changed

FREE, DEAD, RECONCILER = -1, -2, -3
"""The lock's holder: none, a process that crashed, the reconciliation; else the writer."""
IDLE = ("idle", 0, frozenset[int]())
LOST = -9
"""Units that Redis mirrors after it lost its data."""


class Customer(NamedTuple):
    """A customer: idle, accepted (202) or refused (409)."""

    at: str = "idle"


class State(NamedTuple):
    """The customers, Redis, the database, the lock and the processes."""

    customers: tuple[Customer, ...]
    mirror: int
    quantity: int
    stream: frozenset[int] = frozenset()
    orders: tuple[int, ...] = ()
    rejected: frozenset[int] = frozenset()
    messages: frozenset[int] = frozenset()
    """Orders whose COMMIT may still arrive."""
    holder: int = FREE
    writers: tuple[tuple[str, int], ...] = (("idle", 0),) * 2
    """Their steps: idle, took, settled or decided; and their reservation."""
    reconciler: tuple[str, int, frozenset[int]] = IDLE
    """Its step: idle, compared, matched or checked; the quantity and the outcomes that it read."""
    is_checked: bool = False
    """Nothing was written since the last comparison began."""
    is_excused: bool = False
    """Redis lost data, or a lease ended: an accepted reservation may be rejected."""
    faults: int = 2


def _moves(rules: Any, s: State) -> Moves:
    for i, customer in enumerate(s.customers):
        if customer.at == "idle" and s.mirror != LOST:
            is_left = s.mirror > len(s.stream)
            now = s._replace(stream=s.stream | {i}) if is_left else s
            action, at = ("Reserve", "accepted") if is_left else ("SoldOut", "refused")
            yield action, i, changed(now, i, at=at)
    for w in range(len(s.writers)):
        yield from _write(rules, s, w)
    yield from _reconcile(rules, s)
    for i in sorted(s.messages):
        yield "Deliver", i, _commit(rules, s, i)._replace(messages=s.messages - {i})
    if s.holder == DEAD:
        yield "Expire", 0, s._replace(holder=FREE)
    elif s.holder != FREE and s.faults:
        yield "Pause", 0, s._replace(holder=FREE, is_excused=True, faults=s.faults - 1)
    if s.mirror != LOST and s.faults:
        now = s._replace(mirror=LOST, stream=frozenset(), is_checked=False, is_excused=True)
        for i in set(range(len(s.customers))).difference(s.orders, s.rejected):
            now = changed(now, i, at="idle")
        yield "Lose", 0, now._replace(faults=s.faults - 1)


def _write(rules: Any, s: State, w: int) -> Moves:
    at, i = s.writers[w]
    if at == "idle" and s.holder == FREE:
        for entry in sorted(s.stream):
            yield "Take", entry, _step(s._replace(holder=w), w, "took", entry)
    elif at == "took" and rules.has_unique_number and i in {*s.orders, *s.rejected}:
        yield "Find", i, _step(s, w, "decided", i)
    elif at == "took" and rules.settles_first:
        yield "Settle", i, _step(_settle(s, i), w, "settled", i)
    elif at in ("took", "settled"):
        now = _commit(rules, s, i)
        if now == s and i not in s.orders:
            yield "Reject", i, _step(s._replace(rejected=s.rejected | {i}), w, "decided", i)
        else:
            yield "Commit", i, _step(now, w, "decided", i)
        if s.faults:
            lost = s._replace(messages=s.messages | {i}, faults=s.faults - 1)
            yield "LoseReply", i, _step(lost, w)
    elif at == "decided":
        yield "Settle", i, _step(_settle(s, i), w)
    if at != "idle" and s.faults:
        holder = DEAD if s.holder == w else s.holder
        yield "Crash", 0, _step(s._replace(holder=holder, faults=s.faults - 1), w)


def _reconcile(rules: Any, s: State) -> Moves:
    at, quantity, known = s.reconciler
    is_free = s.holder == FREE or not rules.locks_reconciler
    holder = FREE if s.holder == RECONCILER else s.holder
    free = s._replace(reconciler=IDLE, holder=holder)
    if at == "idle" and rules.has_reconciler and not s.is_checked and is_free:
        holder = RECONCILER if rules.locks_reconciler else s.holder
        now = s._replace(holder=holder, is_checked=True, reconciler=("compared", s.quantity, known))
        yield "Compare", 0, now
    elif at == "compared":
        if s.mirror == quantity:
            yield "Agree", 0, free
        known = frozenset((*s.orders, *s.rejected))
        yield "Match", 0, s._replace(reconciler=("matched", quantity, known))
    elif at == "matched" and rules.reads_again:
        at = "checked" if s.quantity == quantity else "compared"
        yield "ReadAgain", 0, s._replace(reconciler=(at, s.quantity, known))
    elif at in ("matched", "checked"):
        yield "Repair", 0, free._replace(stream=s.stream - known, mirror=quantity)


def _commit(rules: Any, s: State, i: int) -> State:
    """Insert an order if its number is new and a unit is left."""
    if s.quantity == 0 or (i in s.orders and rules.has_unique_number):
        return s
    return s._replace(orders=(*s.orders, i), quantity=s.quantity - 1, is_checked=False)


def _settle(s: State, i: int) -> State:
    """Remove a reservation from the stream, with its unit."""
    if i not in s.stream:
        return s
    return s._replace(stream=s.stream - {i}, mirror=s.mirror - 1, is_checked=False)


def _step(s: State, w: int, at: str = "idle", entry: int = 0) -> State:
    """Return the state with a writer at another step; an idle one holds no lock."""
    writers = (*s.writers[:w], (at, entry), *s.writers[w + 1 :])
    return s._replace(writers=writers, holder=FREE if at == "idle" and s.holder == w else s.holder)


PROMISES = {
    "never oversold": lambda r, s: len(s.orders) <= r.units,
    "at most one order per key": lambda r, s: len(set(s.orders)) == len(s.orders),
    "stock conserved": lambda r, s: s.quantity + len(s.orders) == r.units,
    "one outcome": lambda r, s: s.rejected.isdisjoint(s.orders),
    "no accepted reservation rejected": lambda r, s: s.is_excused or not s.rejected,
}
AT_REST = {
    "no accepted reservation lost": lambda r, s: all(
        one.at != "accepted" or i in {*s.orders, *s.rejected} for i, one in enumerate(s.customers)
    ),
    "no unit lost": lambda r, s: s.mirror == s.quantity,
}
PROTOCOL = Protocol(
    "queue",
    lambda rules: State((Customer(),) * (rules.units + 1), rules.units, rules.units),
    _moves,
    PROMISES,
    AT_REST,
)
