"""Asyncio tasks that wait for Redis locks, without threads of their own.

The backend's helper thread sends the commands of all tasks, on the connections that threads use. A
task that waits costs an entry of the queue in Redis and an event here: the grants of all tasks of
an event loop are published to one connection, its inbox.
"""

from __future__ import annotations

import asyncio
import math
import time
from asyncio import AbstractEventLoop
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

import hiredis

from locking.backends.redis.connection import NO_REPLY, Connection
from locking.backends.redis.pool import ConnectionPool
from locking.backends.redis.requests import RedisRequests
from locking.backends.redis.scripts import MAX_SLEEP, RECHECK_DELAY
from locking.claims import Claim, Grant
from locking.exceptions import LockUnavailable
from locking.fork import after_fork_in_child

MAX_REQUESTS = 16
"""Requests of waiting tasks in the helper thread's queue: one takes more memory than a waiter."""


class Waiter:
    """A claim that waits for a message from Redis, or to be woken without one."""

    __slots__ = ("_future", "_is_woken", "claim", "entry", "is_recheck", "message")

    def __init__(self, claim: Claim, entry: str) -> None:
        self.claim = claim
        self.entry = entry
        """The entry in Redis's queue."""
        self.is_recheck = False
        """True if it was woken to ask whether the present grant has ended."""
        self.message = ""
        self._is_woken = False
        self._future: asyncio.Future[None] | None = None

    def wake(self, message: str = "") -> None:
        """End the present wait, or the next one."""
        self.message = message or self.message
        self._is_woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> str:
        """Return the message, or "" if woken without one."""
        if not self._is_woken:
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            finally:
                self._future = None
        message, self.message, self._is_woken = self.message, "", False
        return message


class _Queue:
    """The waiters for one name, in the order of their arrival."""

    __slots__ = ("due", "timer", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[Waiter, None] = {}
        self.due = 0.0
        self.timer: asyncio.TimerHandle | None = None


class Inbox:
    """The waiting tasks of an event loop, and the connection on which their grants arrive.

    Only the first waiter of a name asks again when the present grant should have ended: its script
    serves the whole queue in Redis.
    """

    def __init__(self, backend: RedisRequests) -> None:
        self.channel = ""
        """The same for all connections, because the entries in Redis's queues name it."""
        self._helper = backend.helper
        self._pool = backend.pool
        self._loop = asyncio.get_running_loop()
        self._opening = asyncio.Lock()
        self.asking = asyncio.Semaphore(MAX_REQUESTS)
        self._connection: Connection | None = None
        self._by_owner: dict[str, Waiter] = {}
        self._queues: dict[str, _Queue] = {}

    async def open(self) -> None:
        """Subscribe to the channel, unless it is subscribed."""
        async with self._opening:
            if self._connection is None:
                self._pool.raise_if_open()
                opening = self._helper.submit(partial(_subscribed, self._pool, self.channel))
                try:
                    opened = await asyncio.shield(asyncio.wrap_future(opening))
                except asyncio.CancelledError:
                    opening.add_done_callback(_close_opened)
                    raise
                opened.set_nonblocking()
                self._connection, self.channel = opened, opened.channel
                self._loop.add_reader(opened.fileno(), self._read, opened, opened.fileno())

    def _read(self, connection: Connection, fd: int) -> None:
        try:
            connection.receive()
            while (item := connection.next_reply()) is not NO_REPLY:
                if isinstance(item, hiredis.PushNotification) and item[0] == "message":
                    self._deliver(item[2])
        except LockUnavailable:
            self._loop.remove_reader(fd)  # closed, the connection does not know it
            self._connection = None
            for waiter in list(self._by_owner.values()):
                waiter.wake()  # to ask again, because a message may be lost

    def _deliver(self, message: str) -> None:
        waiter = self._by_owner.get(message.split(" ", 2)[2])
        if waiter is not None:  # else it has left
            waiter.wake(message)

    def close(self) -> None:
        """Close the connection; waiters open another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._loop.remove_reader(connection.fileno())
            connection.close()
        for waiter in list(self._by_owner.values()):
            with suppress(RuntimeError):  # its task was left in an event loop that is closed
                waiter.wake()

    def add(self, waiter: Waiter) -> None:
        """Let messages and rechecks find the waiter."""
        self._by_owner[waiter.claim.owner] = waiter
        self._queues.setdefault(waiter.claim.name, _Queue()).waiters[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        """Forget the waiter; another one asks again in its place."""
        claim = waiter.claim
        self._by_owner.pop(claim.owner, None)
        queue = self._queues[claim.name]
        queue.waiters.pop(waiter, None)
        if not queue.waiters:
            del self._queues[claim.name]
            if queue.timer is not None:
                queue.timer.cancel()
        elif queue.timer is None:
            self.recheck_at(claim.name, time.monotonic() + RECHECK_DELAY)

    def recheck_at(self, name: str, when: float) -> None:
        """Let the first waiter of the name ask again at this monotonic time, or before."""
        queue = self._queues[name]
        if queue.timer is not None:
            if queue.due <= when:
                return
            queue.timer.cancel()
        queue.due = when
        pause = min(max(0.0, when - time.monotonic()), MAX_SLEEP)
        queue.timer = self._loop.call_later(pause, self._recheck, queue)

    def _recheck(self, queue: _Queue) -> None:
        queue.timer = None
        first = next(iter(queue.waiters))
        first.is_recheck = True
        first.wake()

    def rejoin(self, name: str) -> None:
        """Let all waiters of the name ask again, in their order: Redis has lost its queue."""
        for waiter in list(self._queues[name].waiters):
            waiter.wake()


def _subscribed(pool: ConnectionPool, channel: str) -> Connection:
    connection = pool.open(channel)
    connection.command("PING")  # its reply comes after that to SUBSCRIBE
    return connection


def _close_opened(opening: Future[Connection]) -> None:
    if opening.exception() is None:
        opening.result().close()


class AsyncRedis:
    """The waits of tasks for the locks of a Redis backend."""

    def __init__(self, backend: RedisRequests) -> None:
        self._backend = backend
        self.inboxes: dict[AbstractEventLoop, Inbox] = {}
        """By event loop, until another loop starts after its end."""
        after_fork_in_child(self.reset)

    def reset(self) -> None:
        """Forget the parent's connections in a forked child; the pool abandons them."""
        self.inboxes = {}

    def close(self) -> None:
        """Close the connections of all event loops."""
        for loop, inbox in list(self.inboxes.items()):
            if loop.is_running():
                loop.call_soon_threadsafe(inbox.close)
            else:
                inbox.close()

    def _inbox(self) -> Inbox:
        loop = asyncio.get_running_loop()
        inbox = self.inboxes.get(loop)
        if inbox is None:
            for ended in [known for known in list(self.inboxes) if known.is_closed()]:
                if left := self.inboxes.pop(ended, None):  # another thread may do the same
                    left.close()
            inbox = self.inboxes[loop] = Inbox(self._backend)
        return inbox

    async def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Acquire the lock, or wait until a release grants it to this claim."""
        until = time.monotonic() + timeout
        backend, inbox, entry = self._backend, self._inbox(), ""
        try:
            if timeout <= 0 or not inbox.channel:  # most locks are free: needs no inbox
                asked = await backend.helper.run(partial(backend.ask, claim, ""))
                if asked.grant is not None or timeout <= 0:
                    return asked.grant
                await inbox.open()
            entry = backend.entry(claim, inbox.channel)
            return await self._wait(inbox, Waiter(claim, entry), until)
        except BaseException as error:
            # Runs after the request that may still be running. Not awaited, so that another
            # cancellation changes nothing.
            backend.helper.submit(partial(backend.abandon, claim, entry, error))
            raise

    async def _wait(self, inbox: Inbox, waiter: Waiter, until: float) -> Grant | None:
        backend, claim, entry, timer = self._backend, waiter.claim, waiter.entry, None
        if until < math.inf:
            timer = asyncio.get_running_loop().call_later(until - time.monotonic(), waiter.wake)
        inbox.add(waiter)
        try:
            while True:
                await inbox.open()
                async with inbox.asking:
                    asked = await backend.helper.run(partial(backend.ask, claim, entry))
                if waiter.is_recheck and asked.is_new:
                    inbox.rejoin(claim.name)
                waiter.is_recheck = False
                if asked.grant is not None:
                    return asked.grant
                inbox.recheck_at(claim.name, asked.recheck_at)
                message = await waiter.wait()
                if message and (grant := backend.grant_of_message(claim, message, asked)):
                    return grant
                if time.monotonic() >= until:  # also if it was woken for two reasons at once
                    return await backend.helper.run(partial(backend.leave, claim, entry))
        finally:
            inbox.remove(waiter)
            if timer is not None:
                timer.cancel()
