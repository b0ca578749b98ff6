"""Connections to one Redis server, its circuit breaker, and one retry after a lost connection."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import cache
from typing import Self, TypeVar
from urllib.parse import urlsplit

from locking.backends.circuit_breaker import CircuitBreaker
from locking.backends.pool import IdlePool
from locking.backends.redis.addresses import connect
from locking.backends.redis.connection import Connection, Disconnected, is_timeout, may_repeat
from locking.exceptions import LockUnavailable

T = TypeVar("T")

MAX_IDLE = 64
PROBE_SECONDS = 0.8
"""Time-out of the circuit breaker's probe."""
USE_SECONDS = 0.25
"""The same where a server that is slower than that is of no use."""
NOT_RESPONDING = "Redis has not responded for a while."


@cache
def redis_breaker(url: str, *, until_reply: bool = False) -> CircuitBreaker:
    """Return the circuit breaker that all clients of this address share in this process.

    With `until_reply`, errors do not close it: it is open while the server cannot be used.
    """
    limit = PROBE_SECONDS / (2 if "+sentinel:" in url else 1)  # the next master may be there
    if until_reply:
        limit = USE_SECONDS

    def probe() -> None:
        try:
            connection = connect(url, timeout=limit, connect_timeout=limit)
            connection.command("PING")
            connection.close()
        except LockUnavailable as error:
            if until_reply or is_timeout(error):
                raise

    return CircuitBreaker(f"Redis at {urlsplit(url).netloc.rpartition('@')[2]}", probe)


class ConnectionPool(IdlePool[Connection]):
    """Connections to one server, or to the master that Sentinels name.

    Raises Disconnected while its circuit breaker is open. With a `channel_prefix`, each connection
    is subscribed to a channel of its own.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 1.0,
        connect_timeout: float = 1.0,
        channel_prefix: str = "",
    ) -> None:
        super().__init__(MAX_IDLE)
        self.url = url
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self._channel_prefix = channel_prefix
        self._breaker = redis_breaker(url)

    def of(self, name: str) -> Self:
        """Return the connections for a name: here, the same for all."""
        return self

    def masters(self) -> list[ConnectionPool]:
        """Return the pools of all servers that keep locks."""
        return [self]

    def raise_if_open(self) -> None:
        """Raise Disconnected while the server's circuit breaker is open."""
        if self._breaker.is_open:
            raise Disconnected(NOT_RESPONDING) from TimeoutError("an earlier command timed out")

    def open(self, channel: str = "") -> Connection:
        """Return a new connection, subscribed to `channel` if another connection had it."""
        self.raise_if_open()
        if not channel and self._channel_prefix:
            channel = self._channel_prefix + secrets.token_hex(8)
        return self.add(
            connect(
                self.url,
                timeout=self.timeout,
                connect_timeout=self.connect_timeout,
                channel=channel,
                breaker=self._breaker,
            )
        )

    def get(self) -> Connection:
        """Return an idle connection that is still open, or a new one."""
        self.raise_if_open()
        return self.take() or self.open()

    def give(self, connection: Connection) -> None:
        """Keep a connection that no reply is due on."""
        if not connection.closed:
            connection.idle_since = time.monotonic()
            super().give(connection)

    def retry_once(
        self, connection: Connection, request: Callable[..., T], *args: object
    ) -> tuple[Connection, T]:
        """Call `request(connection, *args)`, on a new connection again if this one breaks.

        Returns the connection that the reply came on. A new one has the old one's channel.
        """
        try:
            return connection, request(connection, *args)
        except LockUnavailable as error:
            if not may_repeat(error):
                raise
            connection = self.open(connection.channel)
            connection.redirected = not isinstance(error, Disconnected)
            return connection, request(connection, *args)

    def call(self, request: Callable[..., T], *args: object) -> T:
        """Send a request that may run twice on a pooled connection; return its reply."""
        connection, reply = self.retry_once(self.get(), request, *args)
        self.give(connection)
        return reply
