"""Commands to all masters at once, from one thread, without waiting for the slowest.

A `Quorum` is one connection to each master, used by one claim at a time. It sends a command to all
masters before it reads the first reply, and stops waiting as soon as a majority has decided. A
later reply is read and dropped before the next one of its connection counts: each connection counts
the replies that are due.

Commands to a master that does not respond stay in its socket in order, the undo after the vote. So
when the master recovers, nothing is left of either.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import hiredis

from locking.backends.circuit_breaker import CircuitBreaker
from locking.backends.redis.connection import NO_REPLY, Connection, Refused
from locking.backends.redis.pool import NOT_RESPONDING
from locking.exceptions import LockUnavailable

CONNECT_TIMEOUT = 0.25
"""Seconds to open a connection, at least. After a failure, only the circuit breaker tries."""
DROP_SECONDS = 1.0
"""A connection on which a reply is due for this long is replaced."""
YES = (1, "OK", "PONG")
NO = (0, None)


@cache
def master_breaker(url: str) -> CircuitBreaker:
    """Return the circuit breaker of a master; it is open while the master cannot be reached.

    That of `redis.pool` is open only while a server does not respond.
    """

    def probe() -> None:
        connection = Connection(url, timeout=CONNECT_TIMEOUT, connect_timeout=CONNECT_TIMEOUT)
        connection.command("PING")
        connection.close()

    return CircuitBreaker(f"Redis at {urlsplit(url).netloc.rpartition('@')[2]}", probe)


class MasterConnection(Connection):
    """A connection to one master that does not block after it was opened.

    It stays open after an exception of a signal handler: the command has to be undone on it.
    """

    close_on = Exception

    def __init__(self, url: str, timeout: float, restart_delay: float) -> None:
        super().__init__(url, timeout=timeout, connect_timeout=timeout, breaker=master_breaker(url))
        self.due = 0
        """Number of replies that have not arrived yet."""
        self.due_since = 0.0
        """Monotonic time since which a reply is due and nothing has arrived."""
        self.votes_from = 0.0
        """Monotonic time from which this master may vote."""
        if restart_delay:
            asked_at = time.monotonic()
            info = str(self.command("INFO", "server"))
            uptime = float(info.partition("uptime_in_seconds:")[2].split("\r\n")[0])
            # Start and end of its uptime are whole seconds: it may have started one second later.
            self.votes_from = asked_at + restart_delay - (uptime - 1)
        self.set_nonblocking()


Votes = dict[MasterConnection, Any]
"""The replies that arrived in time."""


def count(votes: Votes, kind: tuple[object, ...]) -> int:
    """Return the number of votes of a kind: YES or NO."""
    return sum(reply in kind for reply in votes.values())


class Quorum:
    """One connection to each master. For one thread at a time."""

    def __init__(self, urls: Sequence[str], timeout: float, restart_delay: float) -> None:
        self.urls = urls
        self.timeout = timeout
        """Seconds after which a reply is late."""
        self.majority = len(urls) // 2 + 1
        self.errors: dict[str, BaseException] = {}
        """By URL: why there is no connection."""
        self._restart_delay = restart_delay
        self._by_url: dict[str, MasterConnection] = {}
        self._by_fd: dict[int, MasterConnection] = {}
        self._poll = select.poll()

    def connections(self) -> list[MasterConnection]:
        """Return the open connections, after an attempt to open the missing ones."""
        while ready := self._poll.poll(0):
            for fd, _ in ready:
                self._receive(self._by_fd[fd])  # late replies, then the end of the connection
        long_ago = time.monotonic() - max(DROP_SECONDS, self.timeout)
        for each in list(self._by_url.values()):
            if each.due and each.due_since < long_ago:
                self._drop(each, TimeoutError())
        if len(self._by_url) < len(self.urls):
            for url in self.urls:
                if url not in self._by_url:
                    self._connect(url)
        return list(self._by_url.values())

    def _connect(self, url: str) -> None:
        if master_breaker(url).is_open:
            self.errors[url] = LockUnavailable(NOT_RESPONDING)
            return
        try:
            limit = max(CONNECT_TIMEOUT, 4 * self.timeout)
            connection = MasterConnection(url, limit, self._restart_delay)
        except LockUnavailable as error:
            self.errors[url] = error
            master_breaker(url).open()
            return
        self._by_fd[connection.fileno()] = connection
        self._poll.register(connection, select.POLLIN)
        self._by_url[url] = connection
        self.errors.pop(url, None)

    def voters(self) -> list[MasterConnection]:
        """Return the masters to ask for a vote: their restart delay is over."""
        connections, now = self.connections(), time.monotonic()  # in this order: some are new
        return [each for each in connections if each.votes_from <= now]

    def ask(
        self,
        connections: Iterable[MasterConnection],
        packed: bytes,
        timeout: float,
        *,
        wait_for_all: bool = False,
    ) -> Votes:
        """Send a command to these masters; return their votes once decided, or after `timeout`.

        Decided means that a majority voted yes, or that enough voted no to prevent one.
        """
        votes: Votes = {}
        yes, no, until = 0, 0, time.monotonic() + timeout
        waiting = self.send(connections, packed)
        most_no = len(self.urls) - self.majority
        while waiting and (wait_for_all or (yes < self.majority and no <= most_no)):
            # A process that was paused for too long still reads once what has arrived.
            ready = self._poll.poll(max(0.0, until - time.monotonic()) * 1000)
            if not ready:
                break
            for fd, _ in ready:
                connection = self._by_fd[fd]
                reply = self._receive(connection)
                # This command was sent last, so its reply has arrived when no other is due.
                if not connection.due and connection in waiting:
                    waiting.remove(connection)
                    votes[connection] = reply
                    yes += reply in YES
                    no += reply in NO
                elif connection.closed:
                    waiting.discard(connection)
        return votes

    def send(self, connections: Iterable[MasterConnection], packed: bytes) -> set[MasterConnection]:
        """Send a command without waiting for replies; return the connections that accepted it."""
        sent, now = set(), time.monotonic()
        for connection in connections:
            if connection.closed:
                continue
            if not connection.due:
                connection.due_since = now
            try:
                connection.send(packed)
            except LockUnavailable as error:
                self._drop(connection, error)
                continue
            connection.due += 1
            sent.add(connection)
        return sent

    def ask_all(self, packed: bytes, timeout: float) -> Votes:
        """Ask every master. After an exception, the command is sent again and may run twice."""
        try:
            return self.ask(self.connections(), packed, timeout)
        except BaseException:
            self.send_and_close(packed)
            raise

    def undo(self, connections: list[MasterConnection], packed: bytes) -> list[str]:
        """Withdraw the votes of these masters; return the URLs of those that it did not reach.

        A vote whose reply was lost with its connection would block the lock for a ttl.
        """
        sent = self.send(connections, packed)
        return [each.url for each in connections if each not in sent]

    def send_and_close(self, packed: bytes) -> None:
        """Send a last command to all masters after an exception, then close the connections."""
        try:
            self.ask(list(self._by_url.values()), packed, self.timeout, wait_for_all=True)
        finally:
            self.close()

    def is_reusable(self) -> bool:
        """Return True: lost connections are replaced one by one."""
        return True

    def close(self) -> None:
        """Close the connections; new ones are opened when the quorum is used again."""
        for connection in self._by_url.values():
            connection.close()
        self._by_url.clear()
        self._by_fd.clear()
        self._poll = select.poll()

    abandon = close

    def _receive(self, connection: MasterConnection) -> Any:
        """Read what has arrived on one connection; return the last reply, else NO_REPLY."""
        reply = NO_REPLY
        try:
            connection.receive()
            while (item := connection.next_reply()) is not NO_REPLY:
                connection.due -= 1
                reply = item
                if isinstance(item, hiredis.ReplyError):
                    # Loading, read-only, out of memory, not allowed: this may be temporary.
                    raise Refused(f"Redis returned an error: {item}") from item
        except LockUnavailable as error:
            self._drop(connection, error)
        connection.due_since = time.monotonic()
        return reply

    def _drop(self, connection: MasterConnection, error: BaseException) -> None:
        # Not its fileno: a broken connection has none.
        for fd in [fd for fd, known in self._by_fd.items() if known is connection]:
            self._poll.unregister(fd)
            del self._by_fd[fd]
        self._by_url.pop(connection.url, None)
        self.errors[connection.url] = error
        connection.broken(error)
