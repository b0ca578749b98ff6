"""The lock on one Redis server: fair, fenced, without polling.

A hash per name records the holder, a list records the waiters. The script that releases a lock also
grants it to the next waiter and publishes the grant to the waiter's connection, so a contended lock
costs two round trips: one to join the queue, one to release
(docs/adr/0002-redis-queue-and-tokens.md). A waiter sends another command only when the present
grant should have ended.

A Redis server can lose its data, be replaced by an old replica, or have its clock set. Two holders
are then possible, and the fencing token tells the guarded row which one is stale.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import Any

from django.utils.translation import gettext_noop

from locking.backends.redis.aio import Asked, AsyncRedis
from locking.backends.redis.connection import Connection, Disconnected, milliseconds
from locking.backends.redis.held_locks import held_names, holders_of
from locking.backends.redis.pool import ConnectionPool
from locking.backends.redis.requests import RedisRequests
from locking.backends.redis.scripts import (
    CLOCK_ERROR,
    KEEP,
    MAX_SLEEP,
    MAX_STAGGER,
    RECHECK_DELAY,
    RELEASE,
    SALT_BITS,
    STAGGER,
    TAKE,
    TAKE_OVER,
    TICK,
    full_token,
    script_for,
)
from locking.claims import Capabilities, Claim, Grant, Held, other_slots
from locking.exceptions import LockError, LockUnavailable


class RedisBackend(RedisRequests):
    """First come, first served on all machines.

    OPTIONS: PREFIX of the keys ("lock:"), SOCKET_TIMEOUT and CONNECT_TIMEOUT in seconds (1.0) for a
    Redis server that does not respond, REPLICAS (0) that have to acknowledge a grant or its
    extension within half of SOCKET_TIMEOUT before it counts.
    """

    capabilities = Capabilities(
        summary=gettext_noop("One Redis: fast and fair; may lose a lock together with its data."),
        exclusion="machines",
        counts_in_store=True,
        fair=True,
        expires=True,
        fencing=True,
        tokens_outlive_failover=True,
        hands_over=True,
        wakes_waiters=True,
        lists_holders=True,
        shared=True,
    )

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        # A node of a Cluster publishes a grant even to waiters that it takes for unconnected.
        self._asks_again = self._is_cluster or self._replicas > 0
        self._aio = AsyncRedis(self)

    def reset_after_fork(self) -> None:
        """Replace a lock that another thread of the parent may have held."""
        super().reset_after_fork()
        self._aio.reset()

    def close(self) -> None:
        """Close the idle connections, and those of event loops."""
        self._aio.close()
        self.pool.close()

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Acquire the lock, or join the queue and sleep until a release grants it to this claim."""
        until = time.monotonic() + timeout
        pool = self.pool.of(claim.name)
        connection = pool.get()
        entry = ""
        if timeout > 0:
            entry = self.entry(claim, connection.channel)
        try:
            return self._wait(pool, claim, connection, entry, until)
        except BaseException as error:
            self.abandon(claim, entry, error)
            raise

    def _wait(
        self, pool: ConnectionPool, claim: Claim, connection: Connection, entry: str, until: float
    ) -> Grant | None:
        while True:
            connection, asked = self._ask_for(claim, entry, connection)
            if asked.grant is not None or not entry:
                pool.give(connection)
                return asked.grant
            recheck = asked.recheck_at + min(asked.place * STAGGER, MAX_STAGGER)
            claim.interrupt = connection.interrupt
            try:
                message = self._wait_for_message(
                    claim, connection, min(until, recheck, asked.sent + MAX_SLEEP)
                )
            except Disconnected:
                if claim.cancelled.is_set():
                    self._withdraw(pool, claim, connection, entry)
                    return None
                connection = pool.open(connection.channel)
                continue
            finally:
                claim.end_wait()
            if message:
                if (grant := self.grant_of_message(claim, message, asked)) is not None:
                    pool.give(connection)
                    return grant
            elif claim.cancelled.is_set() or time.monotonic() >= until:
                self._withdraw(pool, claim, connection, entry)
                return None

    def _ask_for(
        self, claim: Claim, entry: str, connection: Connection
    ) -> tuple[Connection, Asked]:
        """Ask for the lock and, with an entry, for a place in the queue."""
        sent = time.monotonic()
        undo = partial(self.packed_release, claim, entry)
        connection, reply = self._ask(
            connection, TAKE, claim, *self.take_args(claim, entry), undo=undo
        )
        token, left, ticks, place, is_new, *holder = reply
        grant, ends = None, sent + left / 1000
        if token:
            if self._replicas and not is_new:
                # The script of another connection granted it: WAIT needs a write of its own.
                connection, _ = self._ask(connection, KEEP, claim, "count", "1")
            acknowledged = self._acknowledged(connection)
            try:
                self._require_replicas(acknowledged)
                grant = self.grant(claim, token, ends)
            except LockError:
                self.pool.of(claim.name).give(connection)
                raise
        elif not entry or claim.trace is not None:
            claim.holder = self.holder(claim, holder)
        return connection, Asked(grant, sent, ticks, ends + RECHECK_DELAY, place, bool(is_new))

    def ask(self, claim: Claim, entry: str) -> Asked:
        """Ask for the lock once, for a task."""
        pool = self.pool.of(claim.name)
        connection, asked = self._ask_for(claim, entry, pool.get())
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

    def _acknowledged(self, connection: Connection) -> int:
        """Return the number of replicas that have the last write of the connection."""
        if not self._replicas:
            return 0
        limit = milliseconds(float(self.options["SOCKET_TIMEOUT"]) / 2)
        return int(connection.command("WAIT", str(self._replicas), limit))

    def _require_replicas(self, acknowledged: int) -> None:
        if acknowledged < self._replicas:
            raise LockUnavailable(
                f"{acknowledged} of {self._replicas} REPLICAS acknowledged the grant."
            )

    def _wait_for_message(self, claim: Claim, connection: Connection, until: float) -> str:
        """Return the message for this claim, or ""."""
        while not claim.cancelled.is_set():
            push = connection.wait_for_push(until)
            if push is None:
                break
            message: str = push[2]
            if message.split(" ", 2)[2] == claim.owner:
                return message
        return ""

    async def aacquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Acquire the lock for a task. Of a Cluster, one task of a name waits in a thread."""
        if self._is_cluster:
            return await super().aacquire(claim, timeout)
        return await self._aio.acquire(claim, timeout)

    def entry(self, claim: Claim, channel: str) -> str:
        """Return the claim's entry in the queue; a grant is published to `channel`."""
        entry = f"{channel} {milliseconds(claim.ttl)} {self.ticks()} {claim.owner}"
        return entry if claim.slots is None else f"{entry} {claim.slots}"

    def take_args(self, claim: Claim, entry: str) -> tuple[str, ...]:
        """Return the arguments of TAKE after the owner."""
        args = self.ticks(), milliseconds(claim.ttl), entry
        return args if claim.slots is None else (*args, str(claim.slots))

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

    def _withdraw(
        self, pool: ConnectionPool, claim: Claim, connection: Connection, entry: str
    ) -> None:
        """Leave the queue; a grant that arrived meanwhile goes to the next waiter.

        Uses the connection that is subscribed to the entry's channel. If Redis does not respond,
        that connection is closed, and the entry ends with it: an entry whose channel still had a
        subscriber would be granted the lock and block it for a ttl.
        """
        try:
            pool.raise_if_open()
        except Disconnected:
            connection.send_and_close(self.packed_release(claim, entry))
            raise
        used, reply = self._ask(connection, RELEASE, claim, self.ticks(), entry)
        pool.give(used)
        claim.holder = self.holder(claim, reply)

    def holder(self, claim: Claim, reply: Any) -> Held | None:
        """Return the other holder that a script named for a claim, if any."""
        if not isinstance(reply, list) or not reply:
            return None
        owner, ticks = reply[0], int(reply[1])
        token = full_token(ticks, owner)
        return Held(name=claim.name, owner=owner, token=token, since=ticks * TICK)

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
            return self._run(RELEASE, claim, self.ticks(), entry)
        except BaseException:
            self.repeat_release(claim, entry)
            raise

    def repeat_release(self, claim: Claim, entry: str) -> None:
        """Withdraw in the background what the claim may hold: the lock, or a place in the queue."""
        self.pending_releases.add(lambda: self._run(RELEASE, claim, self.ticks(), entry), claim.ttl)

    def packed_release(self, claim: Claim, entry: str) -> bytes:
        """Return the command that frees what the claim may hold: the lock, or its entry."""
        args = claim.owner, self.ticks(), entry
        return script_for(RELEASE, claim.name).pack(self.keys(claim.name), args, whole=True)

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Extend the grant to `ttl` seconds from now.

        Gives up early enough to try again, on another connection, before the grant ends.
        """
        sent, pool = time.monotonic(), self.pool.of(claim.name)
        args, limit = ("ttl", milliseconds(ttl)), claim.ttl / 4
        connection, held = self._ask(pool.get(), KEEP, claim, *args, limit=limit)
        acknowledged = self._acknowledged(connection) if held else 0
        pool.give(connection)
        if not held:
            raise claim.lost()
        self._require_replicas(acknowledged)
        return sent + ttl - CLOCK_ERROR

    def take_over(self, claim: Claim, owner: str, token: int) -> Grant:
        """Continue the grant that `owner` handed over; a lost reply does not matter."""
        sent = time.monotonic()
        args = self.ticks(), milliseconds(claim.ttl), owner, str(token >> SALT_BITS)
        new, _ = self._run(TAKE_OVER, claim, *args)
        if not new:
            raise claim.lost()
        return self.grant(claim, new, sent + claim.ttl)

    def set_depth(self, claim: Claim, token: int, depth: int) -> None:
        """Store the depth of re-entry in the lock's hash."""
        if not self._run(KEEP, claim, "count", str(depth), "")[0]:
            raise claim.lost()

    def inspect(self) -> list[Held]:
        """Return all held locks. Scans every key of the database, so not for requests."""
        found: list[Held] = []
        for pool in self.pool.masters():
            for name in held_names(pool, self._prefix):
                found += holders_of(pool, self.keys(name), name)
        return found

    def holders(self, name: str) -> list[Held]:
        """Return the holders of one lock, with one script."""
        return holders_of(self.pool.of(name), self.keys(name), name)

    def probe(self) -> None:
        """Send PING."""
        for pool in self.pool.masters():
            pool.call(lambda connection: connection.command("PING"))

    def break_lock(self, name: str) -> bool:
        """Release the lock, or its first holder's part; the holder's next call raises LockLost."""
        if not (holders := self.holders(name)):
            return False
        claim = Claim(name=name, owner=holders[0].owner, ttl=self.ttl)
        return bool(self._run(RELEASE, claim, self.ticks(), "")[0])
