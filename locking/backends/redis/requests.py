"""The requests of the redis backend: keys, scripts, and the clock that tokens are made of."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, NamedTuple

from django.core.checks import CheckMessage, Error

from locking.backends.base import Backend
from locking.backends.options import count, seconds, text
from locking.backends.pending_releases import PendingReleases
from locking.backends.redis.addresses import url_problem
from locking.backends.redis.cluster import Cluster, open_pool, slot_of, tagged, tags
from locking.backends.redis.connection import Connection, Disconnected, Script, Undo, milliseconds
from locking.backends.redis.scripts import (
    CLOCK_ERROR,
    KEEP,
    RELEASE,
    SALT_BITS,
    TAKE,
    TICK,
    full_token,
    script_for,
)
from locking.backends.redis.server_check import server_problem
from locking.claims import Claim, Grant, Held, other_slots
from locking.exceptions import LockError, LockUnavailable
from locking.fork import ForkSafeLock
from locking.names import SHARED

RECHECK_DELAY = 0.002
"""Seconds after a grant's end at which the first waiter tries again."""
MAX_SLEEP = 10.0
"""Seconds after which a waiter tries again: the next holder's grant may end before this one's."""
QUEUE_LIFE = 30.0
"""Seconds after the last request of a waiter at which Redis drops the queue."""
STAGGER = 0.003
"""Seconds by which each further waiter tries again later than the one before."""
MAX_STAGGER = 0.3
LAST_TICK = (1 << 63 - SALT_BITS) - 1
"""A token has 63 bits, so a client's clock that is wrong by a century is not believed."""


class Asked(NamedTuple):
    """The reply to a claim that asked for its lock."""

    grant: Grant | None
    sent: float
    """Monotonic time before the request."""
    ticks: int
    """Redis's time at the reply."""
    ends: float
    """Monotonic time at which the present grant ends unless it is extended."""
    place: int
    """Number of waiters before it."""

    @property
    def ask_again_at(self) -> float:
        """Monotonic time at which a waiter asks again without a message, after those before it.

        Theirs serve the whole queue, so a waiter far behind them only makes sure now and then.
        """
        latest, turn = self.sent + MAX_SLEEP, self.place * STAGGER
        return min(self.ends + RECHECK_DELAY + turn, latest) if turn <= MAX_STAGGER else latest


class RedisRequests(Backend):
    """Runs the scripts of a lock on its server, again if a reply is lost."""

    known_options: ClassVar = {
        "PREFIX": text("lock:"),
        "SOCKET_TIMEOUT": seconds(1.0),
        "CONNECT_TIMEOUT": seconds(1.0),
        "REPLICAS": count(0),
    }

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        self._prefix = self.options["PREFIX"]
        self.pool = open_pool(
            str(self.location),
            timeout=float(self.options["SOCKET_TIMEOUT"]),
            connect_timeout=float(self.options["CONNECT_TIMEOUT"]),
            channel_prefix=f"{self._prefix}wake:",
        )
        self.pending_releases = PendingReleases()
        self._clock = f"{self._prefix}clock"
        self._is_cluster = isinstance(self.pool, Cluster)
        self._replicas = self.options["REPLICAS"]
        # A node of a Cluster publishes a grant even to waiters that it takes for unconnected.
        self._asks_again = self._is_cluster or self._replicas > 0
        self._floor = 0
        self._guard = ForkSafeLock()

    def raise_token_floor(self, name: str, token: int) -> None:
        """Keep this process's tokens above `token`, even if Redis has lost its data."""
        self._raise_floor(token >> SALT_BITS)

    def _raise_floor(self, ticks: int) -> None:
        with self._guard:
            self._floor = max(self._floor, ticks)

    def ticks(self) -> str:
        """Return the time from which tokens grow, as an argument of the scripts."""
        now, floor = time.time_ns() // 16000, self._floor
        return str(now if floor < now < LAST_TICK else floor + 1)

    def keys(self, name: str) -> tuple[str, ...]:
        """Return the keys of the lock, its queue, the clock of all names, and shared holders.

        In a Cluster, the clock is that of the names of one slot, because a script runs in one slot.
        """
        tag = tagged(name) if self._is_cluster else name
        clock = f"{self._clock}:{{{tags()[slot_of(tag)]}}}" if self._is_cluster else self._clock
        lock = f"{self._prefix}{{{tag}}}"
        keys = lock, f"{lock}:waiters", clock
        return (*keys, f"{lock}:holders") if name.startswith(SHARED) else keys

    def _run(self, script: Script, claim: Claim, *args: str) -> tuple[Any, bool]:
        """Return the script's reply, and whether it was sent twice because a reply was lost."""
        pool = self.pool.of(claim.name)
        connection = pool.get()
        used, reply = self._ask(connection, script, claim, *args)
        pool.give(used)
        return reply, used is not connection and not used.redirected

    def _ask(
        self,
        connection: Connection,
        script: Script,
        claim: Claim,
        *args: str,
        undo: Undo = None,
        limit: float = math.inf,
    ) -> tuple[Connection, Any]:
        """Run a script for the claim's owner; see `ConnectionPool.retry_once`.

        The lost reply may have been a grant: a script that runs again returns the same grant.
        """
        keys, args = self.keys(claim.name), (claim.owner, *args)
        script, pool = script_for(script, claim.name), self.pool.of(claim.name)
        if script is KEEP:
            keys = keys[:1]
        return pool.retry_once(connection, Connection.run, script, keys, args, undo, limit)

    def ask_for(self, claim: Claim, entry: str, connection: Connection) -> tuple[Connection, Asked]:
        """Ask for the lock and, with an entry, for a place in the queue."""
        sent = time.monotonic()
        undo = partial(self.packed_release, claim, entry)
        args = self.ticks(), milliseconds(claim.ttl), entry
        slots = () if claim.slots is None else (str(claim.slots),)
        connection, reply = self._ask(connection, TAKE, claim, *args, *slots, undo=undo)
        token, left, ticks, place, is_new, *holder = reply
        grant, ends = None, sent + left / 1000
        if token:
            if self._replicas and not is_new:
                # The script of another connection granted it: WAIT needs a write of its own.
                connection, _ = self._ask(connection, KEEP, claim, "count", "1")
            try:
                self.require_replicas(connection)
                grant = self.grant(claim, token, ends)
            except LockError:
                self.pool.of(claim.name).give(connection)
                raise
        elif not entry:
            claim.holder = self.holder(claim, holder)
        return connection, Asked(grant, sent, ticks, ends, place)

    def ask(self, claim: Claim, entry: str) -> Asked:
        """Ask for the lock once, for a task."""
        pool = self.pool.of(claim.name)
        connection, asked = self.ask_for(claim, entry, pool.get())
        pool.give(connection)
        return asked

    def leave(self, claim: Claim, entry: str) -> None:
        """Leave the queue, for a task; a grant that arrived meanwhile goes to the next waiter."""
        claim.holder = self.holder(claim, self._release(claim, entry)[0])

    def abandon(self, claim: Claim, entry: str, error: BaseException) -> None:
        """Withdraw what the claim may hold after an error, without another one."""
        if isinstance(error, Disconnected):
            self.repeat_release(claim, entry)
        else:
            with suppress(LockUnavailable):
                self._release(claim, entry)

    def require_replicas(self, connection: Connection) -> None:
        """Raise LockUnavailable unless REPLICAS have the last write of the connection."""
        if not self._replicas:
            return
        limit = milliseconds(float(self.options["SOCKET_TIMEOUT"]) / 2)
        acknowledged = connection.command("WAIT", str(self._replicas), limit)
        if acknowledged < self._replicas:
            raise LockUnavailable(
                f"{acknowledged} of {self._replicas} REPLICAS acknowledged the grant."
            )

    def entry(self, claim: Claim, channel: str) -> str:
        """Return the claim's entry in the queue; a grant is published to `channel`."""
        entry = f"{channel} {milliseconds(claim.ttl)} {self.ticks()} {claim.owner}"
        return entry if claim.slots is None else f"{entry} {claim.slots}"

    def grant_of_message(self, claim: Claim, message: str, asked: Asked) -> Grant | None:
        """Return the grant that was published in "token ticks owner".

        None if the claim must ask again: the message has no token, its time is not plausible
        because this process was paused or Redis's clock was set, replicas have to acknowledge the
        grant, or a Cluster sent it.
        """
        token, ticks = map(int, message.split(" ", 2)[:2])
        now, since = time.monotonic(), asked.sent + (ticks - asked.ticks) * TICK
        if not token or self._asks_again or abs(now - since) >= claim.ttl / 10:
            return None
        return self.grant(claim, token, min(now, since) + claim.ttl)

    def grant(self, claim: Claim, ticks: int, deadline: float) -> Grant:
        """Return the grant with its fencing token, and remember the token."""
        if ticks < 0:
            raise other_slots(claim, -ticks)
        self._raise_floor(ticks)
        return Grant(full_token(ticks, claim.owner), deadline - CLOCK_ERROR)

    def holder(self, claim: Claim, reply: Any) -> Held | None:
        """Return the other holder that a script named for a claim, if any."""
        if not isinstance(reply, list) or not reply:
            return None
        owner, ticks = reply[0], int(reply[1])
        token = full_token(ticks, owner)
        return Held(name=claim.name, owner=owner, token=token, since=ticks * TICK)

    def _release(self, claim: Claim, entry: str = "") -> tuple[Any, bool]:
        """Return the reply of RELEASE and whether it was sent twice; see `_run`."""
        try:
            return self._run(RELEASE, claim, self.ticks(), entry)
        except BaseException:
            self.repeat_release(claim, entry)
            raise

    def repeat_release(self, claim: Claim, entry: str) -> None:
        """Withdraw in the background what the claim may hold: the lock, or a place in the queue.

        The place outlasts the ttl. If it is a task's, the next task opens its channel again.
        """
        lasts = max(claim.ttl, QUEUE_LIFE) if entry else claim.ttl
        self.pending_releases.add(lambda: self._run(RELEASE, claim, self.ticks(), entry), lasts)

    def packed_release(self, claim: Claim, entry: str) -> bytes:
        """Return the command that frees what the claim may hold: the lock, or its entry."""
        args = claim.owner, self.ticks(), entry
        return script_for(RELEASE, claim.name).pack(self.keys(claim.name), args, whole=True)

    @classmethod
    def check(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """Check the options, and that LOCATION is the URL of a server."""
        found = super().check(alias, conf)
        if problem := url_problem(conf.get("LOCATION")):
            text = f"LOCKS[{alias!r}] LOCATION {problem}."
            found.append(Error(text, id="locking.E020"))
        return found

    @classmethod
    def check_store(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """Check that the server is a master of its own that keeps its keys."""
        found = server_problem(conf["LOCATION"])
        where = f"LOCKS[{alias!r}] LOCATION"
        return [Error(f"{where} {found[1]}", id=f"locking.{found[0]}")] if found else []
