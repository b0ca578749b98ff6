"""The lock on one Redis (REQUIREMENTS L8 and L9): fair, fenced, handed over without polling.

A hash per name says who holds it; a list says who waits. The script that releases also names the
next holder and publishes that to its connection, so a contended lock costs two round trips: one to
queue up, one to release (docs/adr/0002-redis-queue-and-tokens.md). A waiter asks again only when
the present grant should have ended.

The data of one Redis can be lost, be promoted from an old replica, or see the clock jump: two
holders are then possible, and it is the token that tells the stock which one is late.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from django.core.checks import CheckMessage, Error
from django.utils.translation import gettext_noop
from redis.connection import parse_url

from locking.backends.base import Backend, Capabilities, Claim, Grant, Held
from locking.backends.redis.connection import (
    Disconnected,
    Script,
    Wire,
    WirePool,
    eviction,
    milliseconds,
)
from locking.exceptions import LockUnavailable

TICK = 16e-6
"""Seconds between two tokens of a clock. Ticks fit the 53 bits of a number in Lua for ever."""

SALT_BITS = 15
"""Low bits of a token, from its owner: two masters may give one tick, hardly one token."""

LATE = 0.002
"""Seconds after a grant's end at which the first waiter looks; each further one STAGGER later."""
STAGGER = 0.003
MAX_STAGGER = 0.3

LONGEST_SLEEP = 10.0
"""Seconds after which a waiter looks anyway: the next holder's grant may end before this one's."""

OPTIONS = {"FAIR", "PREFIX", "SOCKET_TIMEOUT", "CONNECT_TIMEOUT"}

_TAKE = Script("redis_queue.lua", "redis_take.lua")
_RELEASE = Script("redis_queue.lua", "redis_release.lua")
_KEEP = Script("redis_keep.lua")


def full_token(ticks: int, owner: str) -> int:
    """The fencing token of a grant: grows with the ticks, and differs between owners."""
    return ticks << SALT_BITS | zlib.crc32(owner.encode()) & (1 << SALT_BITS) - 1


class RedisBackend(Backend):
    """First come, first served over all machines; `FAIR: False` lets a newcomer overtake.

    OPTIONS: FAIR (True), PREFIX of the keys ("lock:"), SOCKET_TIMEOUT and CONNECT_TIMEOUT in
    seconds (1.0): how long a silent Redis is waited for, by the first who asks it.
    """

    capabilities = Capabilities(
        summary=gettext_noop("One Redis: fast and fair; may lose a lock together with its data."),
        exclusion="machines",
        counts_in_store=True,
        fair=True,
        expires=True,
        fencing=True,
        wakes_waiters=True,
        lists_holders=True,
    )

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        fair = bool(self.options.get("FAIR", True))
        self.capabilities = replace(self.capabilities, fair=fair)  # type: ignore[misc]
        self._fair = "1" if fair else "0"
        self._prefix = str(self.options.get("PREFIX", "lock:"))
        self._pool = WirePool(
            str(self.location),
            timeout=float(self.options.get("SOCKET_TIMEOUT", 1.0)),
            connect_timeout=float(self.options.get("CONNECT_TIMEOUT", 1.0)),
        )
        self._floor = 0
        self._guard = threading.Lock()

    def forget(self) -> None:
        """A forked child opens connections of its own."""
        super().forget()
        self._guard = threading.Lock()
        self._pool.forget()

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.close()

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Take it, or queue up and sleep until the releasing script names this claim."""
        until = time.monotonic() + timeout
        wire = self._wire()
        entry = ""
        if timeout > 0:
            entry = f"{wire.channel} {milliseconds(claim.ttl)} {self._ticks()} {claim.owner}"
        try:
            return self._wait(claim, wire, entry, until)
        except Disconnected:
            raise  # its place in the queue died with its connection
        except BaseException:
            with suppress(LockUnavailable):
                self._withdraw(claim, self._wire(), entry)
            raise
        finally:
            claim.interrupt = None

    def _wait(self, claim: Claim, wire: Wire, entry: str, until: float) -> Grant | None:
        while True:
            sent = time.monotonic()
            wire, (token, left, ticks, place) = self._ask(
                wire, _TAKE, claim, self._ticks(), self._fair, milliseconds(claim.ttl), entry
            )
            if token:
                self._pool.give(wire)
                return self._grant(claim, token, sent + left / 1000)
            if not entry:
                self._pool.give(wire)
                return None
            look = sent + left / 1000 + LATE + min(place * STAGGER, MAX_STAGGER)
            claim.interrupt = wire.interrupt
            try:
                news = self._listen(claim, wire, min(until, look, sent + LONGEST_SLEEP))
            except Disconnected:
                if claim.cancelled.is_set():
                    self._withdraw(claim, wire, entry)
                    return None
                wire = self._pool.open(wire.channel)
                continue
            if news is not None:
                token, granted = news
                now = time.monotonic()
                since = sent + (granted - ticks) * TICK
                # Else this process was stopped for long or the clock of Redis was set: ask again.
                if token and abs(now - since) < claim.ttl / 10:
                    self._pool.give(wire)
                    return self._grant(claim, token, min(now, since) + claim.ttl)
            elif claim.cancelled.is_set() or time.monotonic() >= until:
                self._withdraw(claim, wire, entry)
                return None

    def _listen(self, claim: Claim, wire: Wire, until: float) -> tuple[int, int] | None:
        """Sleep until the message for this claim: its token (0 if it must ask) and the time."""
        while not claim.cancelled.is_set():
            message = wire.push(until)
            if message is None:
                return None
            token, ticks, owner = message[2].split(" ", 2)
            if owner == claim.owner:
                return int(token), int(ticks)
        return None

    def _grant(self, claim: Claim, ticks: int, deadline: float) -> Grant:
        token = full_token(ticks, claim.owner)
        self.observe(claim.name, token)
        return Grant(token, deadline)

    def _withdraw(self, claim: Claim, wire: Wire, entry: str) -> None:
        """Leave the queue; a grant that came meanwhile goes to the next.

        On the wire that listens for it: where Redis cannot be told, that dies, and the place with
        it. A place whose channel lived on would be given the lock, for a ttl that nobody uses.
        """
        args = self._ticks(), self._fair, entry
        try:
            self._pool.refuse_while_silent()
        except Disconnected:
            packed = _RELEASE.pack(self._keys(claim.name), (claim.owner, *args), whole=True)
            wire.send(packed)  # it is read when Redis wakes; nobody waits for that
            wire.close()
            raise
        self._pool.give(self._ask(wire, _RELEASE, claim, *args)[0])

    def release(self, claim: Claim, token: int) -> None:
        """Hand it to the first in the queue that is still there."""
        held, resent = self._run(_RELEASE, claim, self._ticks(), self._fair, "")
        # When an answer was lost, "not the owner" is what the release leaves behind.
        if not held and not resent:
            raise claim.lost()

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Let it live `ttl` seconds from now."""
        sent = time.monotonic()
        if not self._run(_KEEP, claim, "ttl", milliseconds(ttl))[0]:
            raise claim.lost()
        return sent + ttl

    def recount(self, claim: Claim, token: int, count: int) -> None:
        """Keep the count in the lock's hash."""
        if not self._run(_KEEP, claim, "count", str(count))[0]:
            raise claim.lost()

    def inspect(self) -> list[Held]:
        """Scan for what is held. Walks all keys of the database: for people, not for requests."""
        pattern = re.sub(r"([\\*?\[\]])", r"\\\1", self._prefix) + "{*}"
        cursor, keys = "0", set[str]()
        while True:
            cursor, found = self._command(
                "SCAN", cursor, "MATCH", pattern, "COUNT", "1000", "TYPE", "hash"
            )
            keys.update(found)
            if cursor == "0":
                break
        locks = []
        for key in sorted(keys):
            owner, ticks, count = self._command("HMGET", key, "owner", "token", "count")
            left = self._command("PTTL", key)
            if owner is None or ticks is None or left < 0:
                continue  # released since, or nobody's lock
            locks.append(
                Held(
                    name=key[len(self._prefix) + 1 : -1],
                    owner=owner,
                    token=full_token(int(ticks), owner),
                    expires_in=left / 1000,
                    count=int(count),
                    waiters=self._command("LLEN", f"{key}:queue"),
                )
            )
        return locks

    def probe(self) -> None:
        """PING."""
        self._command("PING")

    def break_lock(self, name: str) -> bool:
        """Release it in the holder's name, who finds out at its next step."""
        owner = self._command("HGET", self._keys(name)[0], "owner")
        if owner is None:
            return False
        claim = Claim(name=name, owner=owner, ttl=self.ttl)
        return bool(self._run(_RELEASE, claim, self._ticks(), self._fair, "")[0])

    def observe(self, name: str, token: int) -> None:
        """Tokens of this process stay above `token`, whatever Redis still knows."""
        ticks = token >> SALT_BITS
        with self._guard:
            self._floor = max(self._floor, ticks)

    def _ticks(self) -> str:
        return str(max(time.time_ns() // 16000, self._floor + 1))

    def _keys(self, name: str) -> tuple[str, str, str]:
        lock = f"{self._prefix}{{{name}}}"
        return lock, f"{lock}:queue", f"{lock}:clock"

    def _wire(self) -> Wire:
        return self._pool.take() or self._pool.open(f"{self._prefix}wake:{secrets.token_hex(8)}")

    def _command(self, *command: str) -> Any:
        """One command that changes nothing, once more on a new wire when no answer came."""
        wire = self._wire()
        try:
            reply = wire.command(*command)
        except Disconnected:
            wire = self._pool.open(wire.channel)
            reply = wire.command(*command)
        self._pool.give(wire)
        return reply

    def _run(self, script: Script, claim: Claim, *args: str) -> tuple[Any, bool]:
        """The script's answer, and whether it was sent twice because an answer was lost."""
        wire = self._wire()
        used, answer = self._ask(wire, script, claim, *args)
        self._pool.give(used)
        return answer, used is not wire

    def _ask(self, wire: Wire, script: Script, claim: Claim, *args: str) -> tuple[Wire, Any]:
        """Run a script for the claim's owner, once more on a new wire when no answer came.

        The lost answer may have been a grant: a script that runs again says what is the case. The
        new wire listens to the old one's channel.
        """
        keys = self._keys(claim.name)
        try:
            return wire, wire.run(script, keys, (claim.owner, *args))
        except Disconnected:
            wire = self._pool.open(wire.channel)
            return wire, wire.run(script, keys, (claim.owner, *args))

    @classmethod
    def check(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """LOCATION must be an address, and the Redis there, when it is up, must not evict."""
        where = f"LOCKS[{alias!r}]"
        location, options = conf.get("LOCATION", ""), conf.get("OPTIONS") or {}
        if unknown := sorted(set(options) - OPTIONS):
            text = f"{where} has unknown OPTIONS: {', '.join(unknown)}."
            return [Error(text, id="locking.E022")]
        try:
            parse_url(location)  # type: ignore[no-untyped-call]
        except (ValueError, AttributeError, TypeError) as error:
            return [Error(f"{where} LOCATION {location!r}: {error}", id="locking.E020")]
        try:
            policy = eviction(location)
        except LockUnavailable:
            return []  # down, or keeps its settings to itself
        if policy == "noeviction":
            return []
        return [
            Error(
                f"{where} LOCATION evicts keys when it is full (maxmemory-policy {policy}), "
                "and with them locks that are held.",
                hint="Use a Redis of its own with maxmemory-policy noeviction.",
                id="locking.E021",
            )
        ]
