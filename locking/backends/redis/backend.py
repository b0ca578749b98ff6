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

import asyncio
import math
import re
import time
from asyncio import AbstractEventLoop
from typing import Any

from django.utils.translation import gettext_noop

from locking.backends.redis.aio import Inbox
from locking.backends.redis.connection import Connection, Disconnected, Script, milliseconds
from locking.backends.redis.pool import ConnectionPool
from locking.backends.redis.requests import RedisRequests
from locking.backends.redis.scripts import (
    CLOCK_ERROR,
    KEEP,
    LIST,
    RELEASE,
    SALT_BITS,
    TAKE_OVER,
    TICK,
    full_token,
    script_for,
)
from locking.claims import Capabilities, Claim, Grant, Held


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
        self._inboxes: dict[AbstractEventLoop, Inbox] = {}
        """By event loop, until another loop starts after its end."""

    def close(self) -> None:
        """Close the idle connections, and those of event loops."""
        for loop, inbox in list(self._inboxes.items()):
            if loop.is_running():
                loop.call_soon_threadsafe(inbox.close)
            else:
                inbox.close()
        self.pool.close()

    def reset_after_fork(self) -> None:
        """Forget the parent's event loops in a forked child; the pool abandons connections."""
        self._inboxes = {}

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
            connection, asked = self.ask_for(claim, entry, connection)
            if asked.grant is not None or not entry:
                pool.give(connection)
                return asked.grant
            claim.interrupt = connection.interrupt
            try:
                message = self._wait_for_message(claim, connection, min(until, asked.ask_again_at))
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
        return await self._inbox().acquire(claim, timeout)

    def _inbox(self) -> Inbox:
        loop = asyncio.get_running_loop()
        inbox = self._inboxes.get(loop)
        if inbox is None:
            for ended in [known for known in list(self._inboxes) if known.is_closed()]:
                if left := self._inboxes.pop(ended, None):  # another thread may do the same
                    left.close()
            inbox = self._inboxes[loop] = Inbox(self)
        return inbox

    def _withdraw(
        self, pool: ConnectionPool, claim: Claim, connection: Connection, entry: str
    ) -> None:
        """Leave the queue; a grant that arrived meanwhile goes to the next waiter.

        Uses the connection that is subscribed to the entry's channel. If Redis does not respond,
        that connection is closed, and the entry ends with it: an entry whose channel still had a
        subscriber would be granted the lock and block it for a ttl.
        """
        used, reply = self._ask(connection, RELEASE, claim, self.ticks(), entry)
        pool.give(used)
        claim.holder = self.holder(claim, reply)

    def release(self, claim: Claim, token: int) -> None:
        """Release the lock and grant it to the first waiter that is still connected.

        A release without a reply is repeated in the background.
        """
        held, resent = self._release(claim)
        # After a lost reply, "not the owner" is what the first release left behind.
        if not held and not resent:
            raise claim.lost()

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Extend the grant to `ttl` seconds from now.

        Gives up early enough to try again, on another connection, before the grant ends.
        """
        sent = time.monotonic()
        self._continue(KEEP, claim, "ttl", milliseconds(ttl), limit=claim.ttl / 4)
        return sent + ttl - CLOCK_ERROR

    def take_over(self, claim: Claim, owner: str, token: int) -> Grant:
        """Continue the grant that `owner` handed over; a lost reply does not matter."""
        sent = time.monotonic()
        args = self.ticks(), milliseconds(claim.ttl), owner, str(token >> SALT_BITS)
        return self.grant(claim, self._continue(TAKE_OVER, claim, *args), sent + claim.ttl)

    def _continue(self, script: Script, claim: Claim, *args: str, limit: float = math.inf) -> Any:
        """Return the reply of a script that prolongs a grant; raise LockLost if there is none."""
        pool = self.pool.of(claim.name)
        connection, reply = self._ask(pool.get(), script, claim, *args, limit=limit)
        try:
            if not reply:
                raise claim.lost()
            self.require_replicas(connection)
        finally:
            pool.give(connection)
        return reply

    def set_depth(self, claim: Claim, token: int, depth: int) -> None:
        """Store the depth of re-entry in the lock's hash."""
        if not self._run(KEEP, claim, "count", str(depth), "")[0]:
            raise claim.lost()

    def inspect(self) -> list[Held]:
        """Return all held locks. Scans every key of the database, so not for requests."""
        pattern = re.sub(r"([\\*?\[\]])", r"\\\1", self._prefix) + "{*}"
        keys = set[str]()
        for pool in self.pool.masters():
            cursor = ""
            while cursor != "0":
                scan = "SCAN", cursor or "0", "MATCH", pattern, "COUNT", "1000", "TYPE", "hash"
                cursor, found = pool.call(Connection.command, *scan)
                keys.update(found)
        names = [key[len(self._prefix) + 1 : -1].removeprefix("\x01") for key in sorted(keys)]
        return [held for name in names for held in self.holders(name)]

    def holders(self, name: str) -> list[Held]:
        """Return the holders of one lock; the one whose grant ends first comes first."""
        script, keys = script_for(LIST, name), self.keys(name)
        found = self.pool.of(name).call(Connection.run, script, keys, ("", "0"), None)
        return [
            Held(
                name=name,
                owner=owner,
                token=full_token(int(ticks), owner),
                since=int(ticks) * TICK,
                expires_in=left_ms / 1000,
                count=count,
                waiters=waiters,
            )
            for owner, ticks, count, left_ms, waiters in found
        ]

    def probe(self) -> None:
        """Send PING."""
        for pool in self.pool.masters():
            pool.call(lambda connection: connection.command("PING"))

    def break_lock(self, name: str) -> bool:
        """Release the lock, or its first holder's part; the holder's next call raises LockLost."""
        if not (holders := self.holders(name)):
            return False
        claim = Claim(name=name, owner=holders[0].owner, ttl=self.ttl)
        return any(self._run(RELEASE, claim, self.ticks(), ""))  # it was sent twice, or was held
