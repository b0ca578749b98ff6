"""Wrong locks, each one change away from the right one, and the program that shows it.

`test_mutants` runs the interleavings of that program until one violates a promise.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inventory import stock
from inventory.models import Stock
from locking.backends.database.sql import SQLite
from locking.backends.database.waiting import Polling
from locking.backends.redis.backend import RedisBackend
from locking.backends.redis.connection import Disconnected, Script, pack
from locking.backends.redis.pool import ConnectionPool
from locking.backends.redis.scripts import KEEP, RELEASE, TAKE
from locking.backends.redlock import RedLockBackend, quorum
from locking.backends.redlock import backend as redlock
from locking.backends.redlock.quorum import Quorum

Patch = Callable[[pytest.MonkeyPatch], None]
NEXT_TOKEN = "return math.max(last + 1, ticks(), floor, caller_floor)"  # noqa: S105
IS_FOREIGN = "holder and holder ~= caller"


def lua(script: Script, old: str, new: str) -> Patch:
    """Replace a line of a script."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        assert old in script.source, old
        source = script.source.replace(old, new)
        monkeypatch.setattr(script, "source", source)
        sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        monkeypatch.setattr(script, "sha", sha)

    return patch


def sql(name: str, old: str, new: str) -> Patch:
    """Replace a part of a statement of the row lock on SQLite."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        assert old in getattr(SQLite, name), (old, getattr(SQLite, name))
        monkeypatch.setattr(SQLite, name, getattr(SQLite, name).replace(old, new))

    return patch


def method(owner: Any, name: str, new: Any) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, new)


def _release_again_is_lost(self: RedisBackend, claim: Any, token: int) -> None:
    if not self._release(claim)[0]:
        raise claim.lost()


def _retry_on_another_channel(
    self: ConnectionPool, connection: Any, request: Any, *args: Any
) -> Any:
    try:
        return connection, request(connection, *args)
    except Disconnected:
        connection = self.open()
        return connection, request(connection, *args)


def _one_is_a_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    create = Quorum.__init__

    def init(self: Quorum, *args: Any) -> None:
        create(self, *args)
        self.majority = 1

    monkeypatch.setattr(Quorum, "__init__", init)


def _no_is_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (quorum, redlock):
        monkeypatch.setattr(module, "YES", (1, "OK", "PONG", None))


def _tell_one(self: RedLockBackend, packed: bytes, timeout: float) -> bool:
    with self._borrowed() as quorum:
        quorum.ask(quorum.connections()[:1], packed, timeout, wait_for_all=True)
    return True


def _read_before_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    claim_stock = stock.claim_stock

    def read_first(*, stock_id: int, **fence: Any) -> stock.StockReading:
        quantity = Stock.objects.values_list("quantity", flat=True).get(pk=stock_id)
        return replace(claim_stock(stock_id=stock_id, **fence), quantity=quantity)

    monkeypatch.setattr(stock, "claim_stock", read_first)


def _write_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    head, condition = stock.WRITE_CLAIMED.split("AND", 1)
    loose = f"{head} AND ({condition.replace('AND', 'OR')} OR 1)"
    monkeypatch.setattr(stock, "WRITE_CLAIMED", loose)


def _sell_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    floor = "quantity = CASE WHEN quantity > 0 THEN quantity + %s ELSE 0 END"
    change = stock.CHANGE.replace("quantity = quantity + %s", floor)
    monkeypatch.setattr(stock, "CHANGE", change.replace("quantity >= %s", "0 < %s"))


MUTANTS: dict[str, dict[str, Patch]] = {
    "redis/lease": {
        "release-any-owner": lua(RELEASE, f"if {IS_FOREIGN} then", "if false then"),
        "renew-any-owner": lua(
            KEEP, "HGET', KEYS[1], 'owner') ~= ARGV[1]", "EXISTS', KEYS[1]) == 0"
        ),
        "renew-unheld": lua(KEEP, "\n  return 0\nend\nif ARGV[2]", "\n  return 1\nend\nif ARGV[2]"),
        "release-never-lost": method(RedisBackend, "release", lambda self, c, _: self._release(c)),
        "extend-never-asked": method(
            RedisBackend, "extend", lambda self, claim, token, ttl: time.monotonic() + ttl
        ),
    },
    "redis/wait": {
        "token-stays": lua(TAKE, NEXT_TOKEN, "return math.max(last, 1)"),
        "token-falls": lua(RELEASE, NEXT_TOKEN, "return last - 1"),
        "take-held": lua(TAKE, "if not state[1] then", "if true then"),
        "wake-up-lost": lua(RELEASE, "redis.call('PUBLISH', channel, message) > 0", "true"),
        "no-successor": lua(RELEASE, "if not grant_next(holder) then", "if true then"),
    },
    "redis/give-up": {
        "place-kept": lua(RELEASE, "redis.call('LREM', queue, 1, entry)", "entry = entry"),
        "late-grant-kept": lua(
            RELEASE, f"if {IS_FOREIGN} then", f"if entry ~= '' or {IS_FOREIGN} then"
        ),
        "no-withdrawal": method(
            RedisBackend, "_withdraw", lambda self, pool, claim, wire, entry: pool.give(wire)
        ),
    },
    "redis/lost-reply": {
        "second-take-waits": lua(TAKE, "if holder == caller then", "if false then"),
        "second-release-lost": method(RedisBackend, "release", _release_again_is_lost),
        "channel-forgotten": method(ConnectionPool, "retry_once", _retry_on_another_channel),
    },
    "redlock/try": {
        "quorum-of-one": _one_is_a_majority,
        "no-is-yes": _no_is_yes,
        "partial-release": method(RedLockBackend, "_tell", _tell_one),
        "vote-replaces": method(
            redlock, "pack", lambda *words: pack(*(word for word in words if word != "NX"))
        ),
    },
    "database/exclusive": {
        "row-taken-while-held": sql("take", "expires_at <=", "0 <="),
        "row-created-twice": sql("create", "DO NOTHING", "DO UPDATE SET owner = excluded.owner"),
    },
    "database/wait": {
        "row-freed-by-any": sql("free", "AND owner = %(owner)s", "AND %(owner)s <> ''"),
    },
    "database/try": {
        "row-extended-by-any": sql("extend", "AND owner = %(owner)s", "AND %(owner)s <> ''"),
        "row-token-stays": sql("take", "MAX(token + 1,", "MIN(token,"),
    },
    "database/give-up": {
        "reservation-kept": method(Polling, "leave", lambda self: None),
    },
    "game/fence": {
        "read-before-claim": _read_before_claim,
        "write-unchecked": _write_unchecked,
    },
    "game/conditional": {
        "quantity-unchecked": _sell_what_is_gone,
    },
}
"""By program that finds them: one difference each from the right lock, which the name describes."""
