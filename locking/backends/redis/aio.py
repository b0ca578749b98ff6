"""Redis locks for asyncio: all tasks of an event loop share one connection, and none has a thread.

The connection carries the commands of all tasks, and the grants that Redis publishes to its
channel. A task that waits costs an entry of the queue in Redis and a future here.
"""

from __future__ import annotations

import asyncio
import math
import time
from asyncio import AbstractEventLoop
from functools import partial
from typing import TYPE_CHECKING, Any

from locking.backends.redis.connection import Connection, Refused, Script, Undo, may_repeat
from locking.backends.redis.scripts import KEEP, RECHECK_DELAY, RELEASE, TAKE, script_for
from locking.backends.redis.shared import SharedConnection
from locking.backends.redis.waiters import Waiter, Waiters
from locking.claims import Claim, Grant
from locking.exceptions import LockUnavailable
from locking.threads import start_thread

if TYPE_CHECKING:
    from locking.backends.redis.backend import RedisBackend


class LoopClient:
    """The connection and the waiters of one event loop."""

    def __init__(self, backend: RedisBackend) -> None:
        self.waiters = Waiters()
        self._pool = backend.pool
        self.shared: SharedConnection | None = None
        self.channel = ""
        """The same for all connections, because the entries in Redis's queues name it."""
        self._opening: asyncio.Future[Connection] | None = None

    async def connection(self) -> SharedConnection:
        """Return the open connection; open one if there is none."""
        while self.shared is None or self.shared.closed:
            self._pool.raise_if_open()
            if self._opening is None:
                open_one = partial(self._pool.open, self.channel)
                self._opening = asyncio.wrap_future(start_thread(open_one))
                self._opening.add_done_callback(self._opened)  # if all that wait are cancelled
            opening = self._opening
            await asyncio.shield(opening)
            # The callback may not have run yet. Waiting for a finished future does not yield to
            # it: this loop, and with it the event loop, would never end.
            self._opened(opening)
        return self.shared

    def _opened(self, opening: asyncio.Future[Connection]) -> None:
        if self._opening is not opening:
            return  # a task or the callback was here before
        self._opening = None
        if opening.exception() is None:
            connection = opening.result()
            self.channel = connection.channel
            deliver, rejoin = self.waiters.deliver, self.waiters.rejoin_all
            self.shared = SharedConnection(connection, deliver, rejoin)

    def close(self) -> None:
        """Close the connection."""
        if self.shared is not None:
            self.shared.end(EOFError("the backend was closed"))


class AsyncRedis:
    """The asyncio operations of a `RedisBackend`."""

    def __init__(self, backend: RedisBackend) -> None:
        self._backend = backend
        self.clients: dict[AbstractEventLoop, LoopClient] = {}
        """By event loop, until another loop starts after its end."""

    def reset(self) -> None:
        """Forget the parent's connections in a forked child; the pool abandons them."""
        self.clients = {}

    def close(self) -> None:
        """Close the connections of all event loops."""
        clients, self.clients = self.clients, {}
        for loop, client in clients.items():
            if loop.is_running():
                loop.call_soon_threadsafe(client.close)
            else:
                client.close()

    def _client(self) -> LoopClient:
        loop = asyncio.get_running_loop()
        client = self.clients.get(loop)
        if client is None:
            for ended in [known for known in list(self.clients) if known.is_closed()]:
                if left := self.clients.pop(ended, None):  # another thread may do the same
                    left.close()
            client = self.clients[loop] = LoopClient(self._backend)
        return client

    async def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Acquire the lock, or wait until a release grants it to this claim."""
        until = time.monotonic() + timeout
        client = self._client()
        await client.connection()
        waiter = Waiter(claim, self._backend.entry(claim, client.channel) if timeout > 0 else "")
        timer = None
        if 0 < timeout < math.inf:
            timer = asyncio.get_running_loop().call_later(timeout, waiter.wake)
        client.waiters.add(waiter)
        try:
            return await self._wait(client, waiter, until)
        except BaseException:  # without an await, so that another cancellation changes nothing
            assert client.shared is not None  # `connection` has opened it
            packed = self._backend.packed_release(claim, waiter.entry)
            client.shared.send(packed, partial(self._repeat, claim, waiter.entry))
            raise
        finally:
            client.waiters.remove(waiter)
            if timer is not None:
                timer.cancel()

    def _repeat(self, claim: Claim, entry: str, reply: Any) -> None:
        if isinstance(reply, Exception):
            self._backend.repeat_release(claim, entry)

    async def _wait(self, client: LoopClient, waiter: Waiter, until: float) -> Grant | None:
        backend, claim, waiters = self._backend, waiter.claim, client.waiters
        while True:
            sent = time.monotonic()
            args = backend.take_args(claim, waiter.entry)
            undo = partial(backend.packed_release, claim, waiter.entry)
            (token, left, ticks, _, is_new, *holder), _ = await self._run(
                client, TAKE, claim, *args, undo=undo
            )
            if waiter.is_recheck and is_new:
                waiters.rejoin(claim.name)
            waiter.is_recheck = False
            if token:
                return backend.grant(claim, token, sent + left / 1000)
            if not waiter.entry:
                claim.holder = backend.holder(claim, holder)
                return None
            if claim.trace is not None:
                claim.holder = backend.holder(claim, holder)
            waiters.recheck_at(claim.name, sent + left / 1000 + RECHECK_DELAY)
            message = await waiter.wait()
            if message is not None:
                token, granted = message
                grant = backend.grant_of_message(claim, token, sent, granted - ticks)
                if grant is not None:
                    return grant
            elif time.monotonic() >= until:
                args = backend.release_args(waiter.entry)
                claim.holder = backend.holder(
                    claim, (await self._run(client, RELEASE, claim, *args))[0]
                )
                return None

    async def release(self, claim: Claim) -> None:
        """Release the lock; a release without a reply is repeated in the background."""
        args = self._backend.release_args("")
        try:
            held, resent = await self._run(self._client(), RELEASE, claim, *args)
        except BaseException:
            self._backend.repeat_release(claim, "")
            raise
        # After a lost reply, "not the owner" is what the first release left behind.
        if not held and not resent:
            raise claim.lost()

    async def set_depth(self, claim: Claim, depth: int) -> None:
        """Store the depth of re-entry in the lock's hash."""
        if not (await self._run(self._client(), KEEP, claim, "count", str(depth)))[0]:
            raise claim.lost()

    async def _run(
        self, client: LoopClient, script: Script, claim: Claim, *args: str, undo: Undo = None
    ) -> tuple[Any, bool]:
        """Return the script's reply, and whether it was sent twice because a reply was lost."""
        keys, script = self._backend.keys(claim.name), script_for(script, claim.name)
        shared = await client.connection()
        try:
            return await shared.run(script, keys, (claim.owner, *args), undo), False
        except LockUnavailable as error:
            if not may_repeat(error):
                raise
            is_lost = not isinstance(error, Refused)
        shared = await client.connection()
        return await shared.run(script, keys, (claim.owner, *args), undo), is_lost
