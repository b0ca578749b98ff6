"""The lock on one Redis server (REQUIREMENTS L8 and L9): fair, fenced, without polling.

A hash per name records the holder, a list records the waiters. The script that releases a lock also
grants it to the next waiter and publishes the grant to the waiter's connection, so a contended lock
costs two round trips: one to join the queue, one to release
(docs/adr/0002-redis-queue-and-tokens.md). A waiter sends another command only when the present
grant should have ended.

A Redis server can lose its data, be replaced by an old replica, or have its clock set. Two holders
are then possible, and the fencing token tells the guarded row which one is stale.
"""

from __future__ import annotations

import re
import threading
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from django.core.checks import CheckMessage, Error
from django.utils.translation import gettext_noop
from redis.connection import parse_url

from locking.backends.base import Backend, Capabilities, Claim, Grant, Held
from locking.backends.pending_releases import PendingReleases
from locking.backends.redis.connection import (
    Connection,
    Disconnected,
    Script,
    Undo,
    eviction_policy,
    milliseconds,
)
from locking.backends.redis.pool import ConnectionPool
from locking.exceptions import LockUnavailable

TICK = 16e-6
"""Seconds between two tokens of a clock. Ticks fit the 53 bits of a number in Lua."""

SALT_BITS = 15
"""Low bits of a token, a hash of its owner: two masters may grant in one tick, and these differ."""

RECHECK_DELAY = 0.002
"""Seconds after a grant's end at which the first waiter tries again; others add STAGGER each."""
STAGGER = 0.003
MAX_STAGGER = 0.3

MAX_SLEEP = 10.0
"""Seconds after which a waiter tries again: the next holder's grant may end before this one's."""

OPTIONS = {"FAIR", "PREFIX", "SOCKET_TIMEOUT", "CONNECT_TIMEOUT"}

_TAKE = Script("redis_queue.lua", "redis_take.lua")
_RELEASE = Script("redis_queue.lua", "redis_release.lua")
_KEEP = Script("redis_keep.lua")


def full_token(ticks: int, owner: str) -> int:
    """Return the fencing token of a grant: grows with the ticks, and differs between owners."""
    return ticks << SALT_BITS | zlib.crc32(owner.encode()) & (1 << SALT_BITS) - 1


class RedisBackend(Backend):
    """First come, first served on all machines; with `FAIR: False` a newcomer may overtake.

    OPTIONS: FAIR (True), PREFIX of the keys ("lock:"), SOCKET_TIMEOUT and CONNECT_TIMEOUT in
    seconds (1.0) for a Redis server that does not respond.
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
        self.pool = ConnectionPool(
            str(self.location),
            timeout=float(self.options.get("SOCKET_TIMEOUT", 1.0)),
            connect_timeout=float(self.options.get("CONNECT_TIMEOUT", 1.0)),
            channel_prefix=f"{self._prefix}wake:",
        )
        self.pending_releases = PendingReleases()
        self._floor = 0
        self._guard = threading.Lock()

    def reset_after_fork(self) -> None:
        """Replace a lock that another thread of the parent may have held."""
        super().reset_after_fork()
        self._guard = threading.Lock()

    def close(self) -> None:
        """Close the idle connections."""
        self.pool.close()

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Acquire the lock, or join the queue and sleep until a release grants it to this claim."""
        until = time.monotonic() + timeout
        connection = self.pool.get()
        entry = ""
        if timeout > 0:
            entry = f"{connection.channel} {milliseconds(claim.ttl)} {self._ticks()} {claim.owner}"
        try:
            return self._wait(claim, connection, entry, until)
        except Disconnected:
            self._repeat_release(claim, entry)
            raise
        except BaseException:
            with suppress(LockUnavailable):
                self._release(claim, entry)
            raise
        finally:
            claim.interrupt = None

    def _wait(self, claim: Claim, connection: Connection, entry: str, until: float) -> Grant | None:
        while True:
            sent = time.monotonic()
            args = self._ticks(), self._fair, milliseconds(claim.ttl), entry
            connection, (token, left, ticks, place) = self._ask(
                connection, _TAKE, claim, *args, undo=partial(self._packed_release, claim, entry)
            )
            if token:
                self.pool.give(connection)
                return self._grant(claim, token, sent + left / 1000)
            if not entry:
                self.pool.give(connection)
                return None
            recheck = sent + left / 1000 + RECHECK_DELAY + min(place * STAGGER, MAX_STAGGER)
            claim.interrupt = connection.interrupt
            try:
                message = self._wait_for_message(
                    claim, connection, min(until, recheck, sent + MAX_SLEEP)
                )
            except Disconnected:
                if claim.cancelled.is_set():
                    self._withdraw(claim, connection, entry)
                    return None
                connection = self.pool.open(connection.channel)
                continue
            if message is not None:
                token, granted = message
                now = time.monotonic()
                since = sent + (granted - ticks) * TICK
                # A large difference means that this process was paused or Redis's clock was set.
                if token and abs(now - since) < claim.ttl / 10:
                    self.pool.give(connection)
                    return self._grant(claim, token, min(now, since) + claim.ttl)
            elif claim.cancelled.is_set() or time.monotonic() >= until:
                self._withdraw(claim, connection, entry)
                return None

    def _wait_for_message(
        self, claim: Claim, connection: Connection, until: float
    ) -> tuple[int, int] | None:
        """Return the token (0: try again) and the time of the message for this claim, or None."""
        while not claim.cancelled.is_set():
            message = connection.wait_for_push(until)
            if message is None:
                return None
            token, ticks, owner = message[2].split(" ", 2)
            if owner == claim.owner:
                return int(token), int(ticks)
        return None

    def _grant(self, claim: Claim, ticks: int, deadline: float) -> Grant:
        token = full_token(ticks, claim.owner)
        self.raise_token_floor(claim.name, token)
        return Grant(token, deadline)

    def _withdraw(self, claim: Claim, connection: Connection, entry: str) -> None:
        """Leave the queue; a grant that arrived meanwhile goes to the next waiter.

        Uses the connection that is subscribed to the entry's channel. If Redis does not respond,
        that connection is closed, and the entry ends with it: an entry whose channel still had a
        subscriber would be granted the lock and block it for a ttl.
        """
        try:
            self.pool.raise_if_open()
        except Disconnected:
            connection.send_and_close(self._packed_release(claim, entry))
            raise
        args = self._ticks(), self._fair, entry
        self.pool.give(self._ask(connection, _RELEASE, claim, *args)[0])

    def release(self, claim: Claim, token: int) -> None:
        """Release the lock and grant it to the first waiter that is still connected.

        A release without a reply is repeated in the background.
        """
        held, resent = self._release(claim)
        # After a lost reply, "not the owner" is what the first release left behind.
        if not held and not resent:
            raise claim.lost()

    def _release(self, claim: Claim, entry: str = "") -> tuple[Any, bool]:
        try:
            return self._run(_RELEASE, claim, self._ticks(), self._fair, entry)
        except BaseException:
            self._repeat_release(claim, entry)
            raise

    def _repeat_release(self, claim: Claim, entry: str) -> None:
        """Withdraw in the background what the claim may hold: the lock, or a place in the queue."""
        self.pending_releases.add(
            lambda: self._run(_RELEASE, claim, self._ticks(), self._fair, entry), claim.ttl
        )

    def _packed_release(self, claim: Claim, entry: str) -> bytes:
        args = claim.owner, self._ticks(), self._fair, entry
        return _RELEASE.pack(self._keys(claim.name), args, whole=True)

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Extend the grant to `ttl` seconds from now."""
        sent = time.monotonic()
        if not self._run(_KEEP, claim, "ttl", milliseconds(ttl))[0]:
            raise claim.lost()
        return sent + ttl

    def set_depth(self, claim: Claim, token: int, depth: int) -> None:
        """Store the depth of re-entry in the lock's hash."""
        if not self._run(_KEEP, claim, "count", str(depth))[0]:
            raise claim.lost()

    def inspect(self) -> list[Held]:
        """Return all held locks. Scans every key of the database, so not for requests."""
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
                continue  # released since, or not a lock
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
        """Send PING."""
        self._command("PING")

    def break_lock(self, name: str) -> bool:
        """Release the lock in its holder's name; the holder's next call raises LockLost."""
        owner = self._command("HGET", self._keys(name)[0], "owner")
        if owner is None:
            return False
        claim = Claim(name=name, owner=owner, ttl=self.ttl)
        return bool(self._run(_RELEASE, claim, self._ticks(), self._fair, "")[0])

    def raise_token_floor(self, name: str, token: int) -> None:
        """Keep this process's tokens above `token`, even if Redis has lost its data."""
        ticks = token >> SALT_BITS
        with self._guard:
            self._floor = max(self._floor, ticks)

    def _ticks(self) -> str:
        return str(max(time.time_ns() // 16000, self._floor + 1))

    def _keys(self, name: str) -> tuple[str, str, str]:
        lock = f"{self._prefix}{{{name}}}"
        return lock, f"{lock}:queue", f"{lock}:clock"

    def _command(self, *command: str) -> Any:
        return self.pool.call(lambda connection: connection.command(*command))

    def _run(self, script: Script, claim: Claim, *args: str) -> tuple[Any, bool]:
        """Return the script's reply, and whether it was sent twice because a reply was lost."""
        connection = self.pool.get()
        used, reply = self._ask(connection, script, claim, *args)
        self.pool.give(used)
        return reply, used is not connection

    def _ask(
        self,
        connection: Connection,
        script: Script,
        claim: Claim,
        *args: str,
        undo: Undo = None,
    ) -> tuple[Connection, Any]:
        """Run a script for the claim's owner; see `ConnectionPool.retry_once`.

        The lost reply may have been a grant: a script that runs again returns the same grant.
        """
        keys = self._keys(claim.name)
        return self.pool.retry_once(
            connection, lambda used: used.run(script, keys, (claim.owner, *args), undo)
        )

    @classmethod
    def check(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """Check that LOCATION is an address and that the server there does not evict keys."""
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
            policy = eviction_policy(location)
        except LockUnavailable:
            return []  # down, or CONFIG is not allowed
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
