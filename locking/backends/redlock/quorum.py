"""Commands to all masters at once, from one thread, without waiting for the slowest.

A `Quorum` is one connection to each master, used by one claim at a time. It stops waiting as soon
as a majority has decided; each connection counts the replies that are still due, and drops them
when they arrive.

Commands to a master that does not respond stay in its socket in order, the undo after the vote. So
when the master recovers, nothing is left of either.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import hiredis

from locking.backends.redis.connection import NO_REPLY, Connection, Refused
from locking.backends.redis.pool import NOT_RESPONDING, redis_breaker
from locking.exceptions import LockUnavailable

CONNECT_TIMEOUT = 0.25
"""Seconds to open a connection, at least. After a failure, only the circuit breaker tries."""
DROP_SECONDS = 1.0
"""A connection on which a reply is due for this long is replaced."""
YES = (1, "OK", "PONG")
NO = (0, None)

master_breaker = partial(redis_breaker, until_reply=True)
"""Returns the circuit breaker of a master; it is open while the master cannot be reached."""


class MasterConnection(Connection):
    """A connection to one master that does not block after it was opened.

    It stays open after an exception of a signal handler: the command has to be undone on it.
    """

    close_on = Exception

    def __init__(self, url: str, timeout: float, restart_delay: float) -> None:
        super().__init__(url, timeout=timeout, connect_timeout=timeout, breaker=master_breaker(url))
        self.fd = self.fileno()  # a closed connection has none
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
        self.majority = len(urls) // 2 + 1
        self.undo = b""
        """The command that `send_undo_and_close` sends."""
        self._timeout = timeout
        self._restart_delay = restart_delay
        self._errors: dict[str, BaseException] = {}
        self._by_fd: dict[int, MasterConnection] = {}
        self._poll = select.poll()

    def connections(self) -> list[MasterConnection]:
        """Return the open connections, after an attempt to open the missing ones."""
        while ready := self._poll.poll(0):
            for fd, _ in ready:
                self._receive(self._by_fd[fd])  # late replies, then the end of the connection
        long_ago = time.monotonic() - max(DROP_SECONDS, self._timeout)
        for each in list(self._by_fd.values()):
            if each.due and each.due_since < long_ago:
                self._drop(each, TimeoutError())
        if len(self._by_fd) < len(self.urls):
            known = {each.url for each in self._by_fd.values()}
            for url in self.urls:
                if url not in known:
                    self._connect(url)
        return list(self._by_fd.values())

    def _connect(self, url: str) -> None:
        if master_breaker(url).is_open:
            self._errors[url] = LockUnavailable(NOT_RESPONDING)
            return
        try:
            limit = max(CONNECT_TIMEOUT, 4 * self._timeout)
            connection = MasterConnection(url, limit, self._restart_delay)
        except LockUnavailable as error:
            self._errors[url] = error
            master_breaker(url).open()
            return
        self._by_fd[connection.fd] = connection
        self._poll.register(connection, select.POLLIN)
        self._errors.pop(url, None)

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

    def unavailable(self, votes: Votes) -> LockUnavailable:
        """Return the error for votes without a majority, with the cause at one master."""
        replied, delay = count(votes, YES + NO), self._restart_delay
        error = LockUnavailable(
            f"{replied} of {len(self.urls)} masters replied; {self.majority} are required."
            + (f" Masters that restarted less than {delay:g} s ago do not vote." if delay else "")
        )
        error.__cause__ = next(iter(self._errors.values()), None)
        return error

    def send_undo_and_close(self) -> None:
        """Withdraw at all masters what an exception may have left, then close the connections."""
        try:
            self.ask(list(self._by_fd.values()), self.undo, self._timeout, wait_for_all=True)
        finally:
            self.close()

    def is_reusable(self) -> bool:
        """Return True: lost connections are replaced one by one."""
        return True

    def close(self) -> None:
        """Close the connections; new ones are opened when the quorum is used again."""
        for connection in self._by_fd.values():
            connection.close()
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
        if self._by_fd.pop(connection.fd, None):
            self._poll.unregister(connection.fd)
        self._errors[connection.url] = error
        connection.broken(error)
