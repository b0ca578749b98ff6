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
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import hiredis

from locking.backends.redis.connection import NO_REPLY, Disconnected, Refused
from locking.backends.redlock.master import CONNECT_TIMEOUT, Master, MasterConnection
from locking.exceptions import LockUnavailable

DROP_SECONDS = 1.0
"""A connection on which a reply is due for this long is replaced."""
YES = (1, "OK", "PONG")
NO = (0, None)


@dataclass(slots=True)
class Votes:
    """The replies that arrived in time."""

    yes: list[MasterConnection] = field(default_factory=list)
    no: list[MasterConnection] = field(default_factory=list)
    other: dict[MasterConnection, Any] = field(default_factory=dict)
    """Replies that are neither."""

    @property
    def answered(self) -> int:
        """Return the number of masters that voted."""
        return len(self.yes) + len(self.no)


class Quorum:
    """One connection to each master. For one thread at a time: hold `mutex` to share it."""

    def __init__(self, masters: Sequence[Master], timeout: float) -> None:
        self.masters = masters
        self.timeout = timeout
        """Seconds after which a reply is late."""
        self.majority = len(masters) // 2 + 1
        self.mutex = threading.Lock()
        self.closed = False
        self.pinned_until = 0.0
        """Monotonic time until which it may belong to a held lock."""
        self._connections: dict[Master, MasterConnection] = {}
        self._by_fd: dict[int, MasterConnection] = {}
        self._poll = select.poll()
        self._changed = threading.Condition()
        self._connecting: set[Master] = set()
        self._connected: list[MasterConnection] = []
        self._pending_undo: dict[Master, bytes] = {}
        self._is_new = True

    def connections(self) -> list[MasterConnection]:
        """Return the open connections; missing ones are opened in the background."""
        if len(self._connections) < len(self.masters):
            self._reconnect()
        return list(self._connections.values())

    def voters(self) -> list[MasterConnection]:
        """Return the masters to ask for a vote: no reply is late, and the restart delay is over."""
        connections, late = self.connections(), time.monotonic() - self.timeout
        if any(each.due and each.due_since < late for each in connections):
            self._read_late_replies()
            connections = list(self._connections.values())
        now = time.monotonic()
        return [
            each
            for each in connections
            if each.votes_from <= now and not (each.due and each.due_since < late)
        ]

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
        votes, until = Votes(), time.monotonic() + timeout
        waiting = self.send(connections, packed)
        masters, enough = len(self.masters), self.majority
        while waiting and (
            wait_for_all or (len(votes.yes) < enough and len(votes.no) <= masters - enough)
        ):
            # A process that was paused for too long still reads once what has arrived.
            ready = self._poll.poll(max(0.0, until - time.monotonic()) * 1000)
            if not ready:
                break
            for fd, _ in ready:
                connection = self._by_fd[fd]
                reply = self._receive(connection)
                if connection.closed:
                    waiting.discard(connection)
                    continue
                # This command was sent last, so its reply has arrived when no other is due.
                if connection.due or connection not in waiting:
                    continue
                waiting.remove(connection)
                if reply in YES:
                    votes.yes.append(connection)
                elif reply in NO:
                    votes.no.append(connection)
                else:
                    votes.other[connection] = reply
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
        """Ask every master; retry once on a new connection where one turned out to be broken."""
        try:
            votes = self.ask(self.connections(), packed, timeout)
            if votes.answered < self.majority and len(self._connections) < len(self.masters):
                voted = {each.master for each in (*votes.yes, *votes.no)}
                rest = [each for each in self.connections() if each.master not in voted]
                more = self.ask(rest, packed, timeout)
                votes.yes += more.yes
                votes.no += more.no
        except BaseException:
            self.send_and_reset(packed)
            raise
        return votes

    def undo(self, connections: Sequence[MasterConnection], packed: bytes) -> None:
        """Withdraw the votes of these masters.

        A master whose connection broke gets the command first on its next connection. Otherwise a
        vote whose reply was lost would block the lock for a ttl.
        """
        sent = self.send(connections, packed)
        self._pending_undo.update((each.master, packed) for each in connections if each not in sent)

    def error(self) -> BaseException | None:
        """Return the error of a master that cannot be reached, if any."""
        return next((master.error for master in self.masters if master.error), None)

    def send_and_reset(self, packed: bytes) -> None:
        """Send a last command to all masters after an exception, then `reset`.

        The command must be safe to run twice.
        """
        try:
            self.ask(list(self._connections.values()), packed, self.timeout, wait_for_all=True)
        finally:
            self.reset()

    def is_reusable(self) -> bool:
        """Return True: lost connections are replaced one by one."""
        return True

    def close(self) -> None:
        """Close every connection, including those that are being opened."""
        with self._changed:
            self.closed = True
            self.reset()

    def reset(self) -> None:
        """Close the open connections; new ones are opened when the quorum is used again."""
        with self._changed:
            for connection in (*self._connections.values(), *self._connected):
                connection.close()
            self._connections.clear()
            self._by_fd.clear()
            self._connected.clear()
            self._poll = select.poll()

    def abandon(self) -> None:
        """Close the child's copies of the parent's sockets after a fork."""
        self._changed = threading.Condition()  # another thread of the parent may hold the old one
        self.reset()

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
        if connection.due:
            connection.due_since = time.monotonic()
        return reply

    def _read_late_replies(self) -> None:
        """Read replies that arrived late; drop connections that have waited too long."""
        for fd, _ in self._poll.poll(0):
            self._receive(self._by_fd[fd])
        now = time.monotonic()
        error = LockUnavailable(f"A master did not reply within {DROP_SECONDS:g} s.")
        for connection in list(self._connections.values()):
            if connection.due and now - connection.due_since > DROP_SECONDS:
                self._drop(connection, error)

    def _drop(self, connection: MasterConnection, error: LockUnavailable) -> None:
        # Not its fileno: a broken connection has none.
        for fd in [fd for fd, known in self._by_fd.items() if known is connection]:
            self._poll.unregister(fd)
            del self._by_fd[fd]
        self._connections.pop(connection.master, None)
        connection.close()
        if isinstance(error, Disconnected):
            connection.master.error = error  # reconnect without a delay
        else:
            connection.master.mark_down(error)

    def _reconnect(self) -> None:
        """Open missing connections and collect new ones; wait only while there is no majority."""
        with self._changed:
            for master in self.masters:
                known = master in self._connections or master in self._connecting
                known = known or any(each.master is master for each in self._connected)
                if not known and master.may_connect():
                    threading.Thread(
                        target=self._connect, args=(master,), name="redlock-connect", daemon=True
                    ).start()
                    self._connecting.add(master)  # `_connect` waits for the condition held here
            if self._is_new or len(self._connections) + len(self._connected) < self.majority:
                self._changed.wait_for(lambda: not self._connecting, self.timeout)
            if self._is_new:
                self._changed.wait_for(
                    lambda: not self._connecting or len(self._connected) >= self.majority,
                    CONNECT_TIMEOUT,
                )
                self._is_new = False
            for connection in self._connected:
                if connection.master in self._connections:  # a signal interrupted the loop above
                    connection.close()
                    continue
                self._connections[connection.master] = connection
                self._by_fd[connection.fileno()] = connection
                self._poll.register(connection, select.POLLIN)
                if undo := self._pending_undo.pop(connection.master, None):
                    self.send([connection], undo)
            self._connected.clear()

    def _connect(self, master: Master) -> None:
        """Connect in a thread, because redis-py's connect, TLS handshake and login block."""
        connection = None
        try:
            connection = MasterConnection(master)
            master.mark_up()
        except LockUnavailable as error:
            master.mark_down(error)
        finally:
            with self._changed:
                self._connecting.discard(master)
                if connection is not None:
                    if self.closed:
                        connection.close()
                    else:
                        self._connected.append(connection)
                self._changed.notify_all()
