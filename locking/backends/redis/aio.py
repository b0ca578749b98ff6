"""Asyncio tasks that wait for Redis locks, without threads of their own.

The backend's helper thread sends the commands of all tasks, on the connections that threads use. A
task that waits costs an entry of the queue in Redis and an event here: the grants of all tasks of
an event loop are published to one connection, its inbox. It asks again when a thread would.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial

import hiredis

from locking.backends.redis.connection import NO_REPLY, Connection
from locking.backends.redis.pool import ConnectionPool
from locking.backends.redis.requests import RedisRequests
from locking.claims import Claim, Grant
from locking.exceptions import LockUnavailable

MAX_REQUESTS = 16
"""Requests of waiting tasks in the helper thread's queue: one takes more memory than a waiter."""


class Waiter(asyncio.Event):
    """The wait of a task for a message from Redis; it is set without one to ask again."""

    message = ""

    async def wait_until(self, when: float) -> str:
        """Return the message, or "" if none came until that monotonic time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(when - time.monotonic()):
                await self.wait()
        self.clear()
        message, self.message = self.message, ""
        return message


class Inbox:
    """The tasks of an event loop that wait, and the connection on which their grants arrive."""

    def __init__(self, backend: RedisRequests) -> None:
        self._channel = ""
        """The same for all connections, because the entries in Redis's queues name it."""
        self._backend = backend
        self._loop = asyncio.get_running_loop()
        self._opening = asyncio.Lock()
        self._asking = asyncio.Semaphore(MAX_REQUESTS)
        self._connection: Connection | None = None
        self._waiters: dict[str, Waiter] = {}
        """By owner of the claim."""

    async def _open(self) -> None:
        """Subscribe to the channel, unless it is subscribed."""
        async with self._opening:
            if self._connection is None:
                self._backend.pool.raise_if_open()
                subscribe = partial(_subscribed, self._backend.pool, self._channel)
                opened = await self._backend.helper.run(subscribe)
                opened.set_nonblocking()
                self._connection, self._channel = opened, opened.channel
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
            for waiter in self._waiters.values():
                waiter.set()  # to ask again, because a message may be lost

    def _deliver(self, message: str) -> None:
        waiter = self._waiters.get(message.split(" ", 2)[2])
        if waiter is not None:  # else it has left
            waiter.message = message
            waiter.set()

    async def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Acquire the lock, or wait until a release grants it to this claim."""
        until = time.monotonic() + timeout
        backend, entry = self._backend, ""
        try:
            if timeout <= 0 or not self._channel:  # most locks are free: needs no inbox
                asked = await backend.helper.run(partial(backend.ask, claim, ""))
                if asked.grant is not None or timeout <= 0:
                    return asked.grant
                await self._open()
            entry = backend.entry(claim, self._channel)
            return await self._wait(claim, entry, until)
        except BaseException as error:
            # Runs after the request that may still be running. Not awaited, so that another
            # cancellation changes nothing.
            backend.helper.submit(partial(backend.abandon, claim, entry, error))
            raise

    async def _wait(self, claim: Claim, entry: str, until: float) -> Grant | None:
        backend = self._backend
        waiter = self._waiters[claim.owner] = Waiter()
        try:
            while True:
                await self._open()
                async with self._asking:
                    asked = await backend.helper.run(partial(backend.ask, claim, entry))
                if asked.grant is not None:
                    return asked.grant
                message = await waiter.wait_until(min(until, asked.ask_again_at))
                if message and (grant := backend.grant_of_message(claim, message, asked)):
                    return grant
                if time.monotonic() >= until:  # also if it was woken for two reasons at once
                    return await backend.helper.run(partial(backend.leave, claim, entry))
        finally:
            del self._waiters[claim.owner]

    def close(self) -> None:
        """Close the connection; waiters open another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._loop.remove_reader(connection.fileno())
            connection.close()
        for waiter in self._waiters.values():
            with suppress(RuntimeError):  # its task was left in an event loop that is closed
                waiter.set()


def _subscribed(pool: ConnectionPool, channel: str) -> Connection:
    connection = pool.open(channel)
    connection.command("PING")  # its reply comes after that to SUBSCRIBE
    return connection
