"""Purchases under a lock: the write strategies of `inventory.stock`, and what weakens them.

A buyer acquires the lock, reads the stock row and sends one message with the order and the new
quantity. The message carries a unique key: the buyer may send its form once more, with the same.
"""

from itertools import pairwise
from typing import Any, NamedTuple

from verification.protocols.search import Moves, Protocol, changed

FREE, DEAD = -1, -2
"""The lock's holder if there is none, or if it crashed."""
MAX_TRIES = 2


class Buyer(NamedTuple):
    """A buyer: idle, granted, claimed, read, sent, told or refused."""

    at: str = "idle"
    token: int = 0
    read: int = 0
    tries: int = 1


class State(NamedTuple):
    """The buyers, the lock, the stock row, the orders and the network."""

    buyers: tuple[Buyer, ...]
    quantity: int
    faults: int = 2
    """Faults that may still happen."""
    holder: int = FREE
    tokens: tuple[int, ...] = ()
    last_token: int = 0
    fence: int = 0
    orders: tuple[int, ...] = ()
    messages: frozenset[tuple[int, int, int]] = frozenset()
    """COMMITs under way: buyer, token, and the quantity that it read."""


def _moves(rules: Any, s: State) -> Moves:
    for i, buyer in enumerate(s.buyers):
        yield from _buy(rules, s, i, buyer)
        if s.faults and buyer.at not in ("idle", "told", "refused"):
            yield from _fail(rules, s._replace(faults=s.faults - 1), i, buyer)
    for message in sorted(s.messages):
        yield _deliver(rules, s, message)
    if s.holder == DEAD:
        yield "Expire", 0, s._replace(holder=FREE)
    if "Forget" in rules.faults and s.faults:
        yield "Forget", 0, s._replace(holder=FREE, last_token=0, faults=s.faults - 1)


def _buy(rules: Any, s: State, i: int, buyer: Buyer) -> Moves:
    strategy, message = rules.strategy, (i, buyer.token, buyer.read)
    if buyer.at == "idle" and s.holder == FREE:
        token = s.last_token + 1
        now = s._replace(holder=i, last_token=token, tokens=(*s.tokens, token))
        yield "Acquire", i, changed(now, i, at="granted", token=token)
    elif buyer.at == "granted" and strategy == "fenced" and buyer.token < s.fence:
        yield "Refuse", i, _again(s, i)
    elif buyer.at == "granted" and strategy == "fenced":
        yield "Claim", i, changed(s._replace(fence=buyer.token), i, at="claimed")
    elif buyer.at == "claimed" or (buyer.at == "granted" and strategy != "conditional"):
        if i in s.orders and rules.has_unique_key:
            yield "Replay", i, _end(s, i, "told")
        elif s.quantity:
            yield "Read", i, changed(s, i, at="read", read=s.quantity)
        else:
            yield "SoldOut", i, _end(s, i, "refused")
    elif buyer.at in ("granted", "read"):
        yield "Send", i, changed(s._replace(messages=s.messages | {message}), i, at="sent")
    elif buyer.at == "sent" and rules.ends_early:
        yield "Tell", i, _end(s, i, "told")


def _deliver(rules: Any, s: State, message: tuple[int, int, int]) -> tuple[str, int, State]:
    """Execute a message, and reply if its buyer still waits."""
    i, token, read = message
    is_valid = {
        "naive": True,
        "late_fence": token >= s.fence,
        "fenced": token == s.fence,
        "conditional": token >= s.fence and s.quantity > 0,
    }[rules.strategy] and not (i in s.orders and rules.has_unique_key)
    action, now = "RollBack", s._replace(messages=s.messages - {message})
    if is_valid:
        action, left = "Commit", (s.quantity if rules.strategy == "conditional" else read) - 1
        fence = s.fence if rules.strategy == "naive" else token
        now = now._replace(quantity=left, fence=fence, orders=(*s.orders, i))
    buyer = s.buyers[i]
    if buyer.at == "sent" and buyer.token == token and i in now.orders:
        now = _end(now, i, "told")
    elif buyer.at == "sent" and buyer.token == token:
        now = _again(now, i)
    return action, i, now


def _fail(rules: Any, s: State, i: int, buyer: Buyer) -> Moves:
    if "Pause" in rules.faults and s.holder == i:
        yield "Pause", i, s._replace(holder=FREE)
    if "Crash" in rules.faults:
        yield "Crash", i, _again(s._replace(holder=DEAD) if s.holder == i else s, i)
    if "LoseReply" in rules.faults and buyer.at == "sent":
        yield "LoseReply", i, _again(s, i)


def _end(s: State, i: int, at: str, tries: int = 0) -> State:
    free = s._replace(holder=FREE) if s.holder == i else s
    return changed(free, i, at=at, token=0, read=0, tries=tries)


def _again(s: State, i: int) -> State:
    """Release the lock; the buyer sends its form again, if it may."""
    tries = s.buyers[i].tries
    return _end(s, i, "idle", tries + 1) if tries < MAX_TRIES else _end(s, i, "refused")


PROMISES = {
    "never oversold": lambda r, s: len(s.orders) <= r.units,
    "at most one order per key": lambda r, s: len(set(s.orders)) == len(s.orders),
    "no acknowledged order lost": lambda r, s: (
        {i for i, buyer in enumerate(s.buyers) if buyer.at == "told"}
        <= {*s.orders, *(i for i, _, _ in s.messages)}
    ),
    "tokens unique and growing": lambda r, s: all(a < b for a, b in pairwise(s.tokens)),
    "stock conserved": lambda r, s: s.quantity + len(s.orders) == r.units,
}
PROTOCOL = Protocol(
    "purchase", lambda rules: State((Buyer(),) * rules.buyers, rules.units), _moves, PROMISES
)
