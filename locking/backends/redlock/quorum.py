"""Asking five masters at once, from one thread, without waiting for the slowest.

A `Quorum` is one connection to each master, used by one claim at a time. What it sends to all of
them goes out before the first reply is read, and it stops listening as soon as a majority has
decided. A reply that comes later is still read, and dropped, before the next one of that
connection counts: each connection knows how many replies it is owed, so it is never out of step.

What was sent to a silent master stays in its socket in order, the undoing after the taking. So when
the master wakes, even years later, nothing is left of either.
"""

from __future__ import annotations

import random
import select
import ssl
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import hiredis

from locking.backends.redis.connection import NO_REPLY, READ_SIZE, Connection, Disconnected, Refused
from locking.exceptions import LockUnavailable

CONNECT_SECONDS = 1.0
"""How long a connection may take to come up, and how long a new quorum waits for a majority."""
DROP_SECONDS = 1.0
"""A master that has owed a reply for this long is connected to anew."""
BACK_OFF = (0.1, 1.0)
"""Seconds between attempts to reach a master that is down: first and longest."""
YES = (1, "OK", "PONG")
NO = (0, None)


class Master:
    """One of the masters, as every thread of this process knows it."""

    def __init__(self, url: str, restart_delay: float) -> None:
        self.url = url
        self.restart_delay = restart_delay
        self.error: BaseException | None = None
        """Why it was last found to be down."""
        self._guard = threading.Lock()
        self._failures = 0
        self._dial_from = 0.0

    def may_dial(self) -> bool:
        """Claim an attempt to connect: any number while it is up, one per back-off while down."""
        with self._guard:
            now = time.monotonic()
            if self._failures and now < self._dial_from:
                return False
            self._dial_from = now + CONNECT_SECONDS * 2  # until this attempt says how it went
            return True

    def up(self) -> None:
        """It has answered a new connection."""
        with self._guard:
            self._failures, self.error = 0, None

    def down(self, error: BaseException) -> None:
        """It was not reached, or a connection to it failed."""
        with self._guard:
            first, longest = BACK_OFF
            delay = min(longest, first * 2 ** min(self._failures, 10))
            self._failures += 1
            self._dial_from = time.monotonic() + delay * random.uniform(0.8, 1.0)
            self.error = error


class Line(Connection):
    """A wire to one master which never blocks once it is up."""

    def __init__(self, master: Master) -> None:
        super().__init__(master.url, timeout=CONNECT_SECONDS, connect_timeout=CONNECT_SECONDS)
        self.master = master
        self.owed = 0
        """Replies that have not come yet."""
        self.quiet_since = 0.0
        """Monotonic time of the last sign of life while it owes a reply."""
        self.votes_from = 0.0
        """Monotonic time from which this master may vote: see `restart_delay`."""
        if master.restart_delay:
            asked_at = time.monotonic()
            # Both ends of its uptime are cut to whole seconds: it may be one second younger.
            uptime = float(_field(self.command("INFO", "server"), "uptime_in_seconds")) - 1
            self.votes_from = asked_at + master.restart_delay - uptime
        self._socket.setblocking(False)
        self._pending = getattr(self._socket, "pending", int)  # what TLS has already decoded

    # Unlike its base it stays open when a signal handler's exception strikes: what was asked has
    # to be undone by the same connection.

    def send(self, packed: bytes) -> None:
        """Send a command, or fail at once where the kernel takes no more of them."""
        try:
            self._socket.sendall(packed)
        except Exception as error:
            self._fail(error)
            raise

    def receive(self) -> None:
        """Take in what has arrived."""
        try:
            data = self._socket.recv(READ_SIZE)
            while data and self._pending():
                data += self._socket.recv(READ_SIZE)
            if not data:
                raise EOFError("the server closed it")
            self._reader.feed(data)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except Exception as error:
            self._fail(error)
            raise

    def next_reply(self) -> Any:
        """The next reply that was received whole, else NO_REPLY. Errors are returned."""
        try:
            return self._reader.gets()
        except Exception as error:
            self._fail(error)
            raise


def _field(info: str, name: str) -> str:
    for line in info.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value
    raise LockUnavailable(f"Redis does not tell its {name}.")


@dataclass(slots=True)
class Votes:
    """What the masters said within the time."""

    yes: list[Line] = field(default_factory=list)
    no: list[Line] = field(default_factory=list)
    other: dict[Line, Any] = field(default_factory=dict)
    """Replies that are neither."""

    @property
    def answered(self) -> int:
        """How many masters decided."""
        return len(self.yes) + len(self.no)


class Quorum:
    """One connection to each master. For one thread at a time: hold `mutex` to share it."""

    def __init__(self, masters: Sequence[Master], patience: float) -> None:
        self.masters = masters
        self.patience = patience
        """Seconds after which a reply is late."""
        self.majority = len(masters) // 2 + 1
        self.mutex = threading.Lock()
        self.closed = False
        self.pinned_until = 0.0
        """Monotonic time until which it may belong to a holder, where it does."""
        self._lines: dict[Master, Line] = {}
        self._by_fd: dict[int, Line] = {}
        self._poll = select.poll()
        self._settled = threading.Condition()
        self._dialling: set[Master] = set()
        self._dialled: list[Line] = []
        self._debts: dict[Master, bytes] = {}
        self._new = True

    def lines(self) -> list[Line]:
        """Every connection there is now; those that are missing are opened in the background."""
        if len(self._lines) < len(self.masters):
            self._mend()
        return list(self._lines.values())

    def voters(self) -> list[Line]:
        """The masters to ask for a vote: neither silent nor too young."""
        lines, late = self.lines(), time.monotonic() - self.patience
        if any(line.owed and line.quiet_since < late for line in lines):
            self._drain()
            lines = list(self._lines.values())
        now = time.monotonic()
        return [
            line
            for line in lines
            if line.votes_from <= now and not (line.owed and line.quiet_since < late)
        ]

    def ask(
        self, lines: Iterable[Line], packed: bytes, patience: float, *, all_of_them: bool = False
    ) -> Votes:
        """Send the command to these masters; return once they have decided, or after `patience`.

        Decided means that a majority said yes, or so many said no that none can.
        """
        votes, until = Votes(), time.monotonic() + patience
        waiting = self.tell(lines, packed)
        masters, enough = len(self.masters), self.majority
        while waiting and (
            all_of_them or (len(votes.yes) < enough and len(votes.no) <= masters - enough)
        ):
            # A process that was itself asleep for too long still looks once at what has come.
            ready = self._poll.poll(max(0.0, until - time.monotonic()) * 1000)
            if not ready:
                break
            for fd, _ in ready:
                line = self._by_fd[fd]
                reply = self._receive(line)
                # It was sent last, so it is answered when nothing is owed.
                if line.closed:
                    waiting.discard(line)
                    continue
                if line.owed or line not in waiting:
                    continue
                waiting.remove(line)
                if reply in YES:
                    votes.yes.append(line)
                elif reply in NO:
                    votes.no.append(line)
                else:
                    votes.other[line] = reply
        return votes

    def tell(self, lines: Iterable[Line], packed: bytes) -> set[Line]:
        """Send a command to these masters whatever they say; returns those that it went to."""
        told, now = set(), time.monotonic()
        for line in lines:
            if line.closed:
                continue
            if not line.owed:
                line.quiet_since = now
            try:
                line.send(packed)
            except LockUnavailable as error:
                self._drop(line, error)
                continue
            line.owed += 1
            told.add(line)
        return told

    def settle(self, packed: bytes, patience: float) -> Votes:
        """Ask every master, and once more those whose connection turned out to be broken."""
        try:
            votes = self.ask(self.lines(), packed, patience)
            if votes.answered < self.majority and len(self._lines) < len(self.masters):
                heard = {line.master for line in (*votes.yes, *votes.no)}
                rest = [line for line in self.lines() if line.master not in heard]
                more = self.ask(rest, packed, patience)
                votes.yes += more.yes
                votes.no += more.no
        except BaseException:
            self.abandon(packed)
            raise
        return votes

    def undo(self, lines: Sequence[Line], packed: bytes) -> None:
        """Take back what these masters were asked for.

        A master whose connection broke before it answered is told by its next connection, ahead of
        everything else: else its vote, given but never heard, would stand in the way for a ttl.
        """
        told = self.tell(lines, packed)
        self._debts.update((line.master, packed) for line in lines if line not in told)

    def error(self) -> BaseException | None:
        """Why a master is out of reach, if one is."""
        return next((master.error for master in self.masters if master.error), None)

    def abandon(self, packed: bytes) -> None:
        """After an exception that struck anywhere: a last command to all of them, then `reset`.

        The command must do no harm when it is carried out twice.
        """
        try:
            self.ask(list(self._lines.values()), packed, self.patience, all_of_them=True)
        finally:
            self.reset()

    def close(self) -> None:
        """For good: what is still coming up is closed, too."""
        with self._settled:
            self.closed = True
            self.reset()

    def reset(self) -> None:
        """Close every connection there is; new ones are opened when it is used again."""
        with self._settled:
            for line in (*self._lines.values(), *self._dialled):
                line.close()
            self._lines.clear()
            self._by_fd.clear()
            self._dialled.clear()
            self._poll = select.poll()

    def reset_after_fork(self) -> None:
        """In a forked child: `reset`, of which the parent and the masters notice nothing."""
        self._settled = threading.Condition()  # the old one may be taken for ever
        self.reset()

    def _receive(self, line: Line) -> Any:
        """Read what has come on one connection; the last reply, if there was one."""
        reply = NO_REPLY
        try:
            line.receive()
            while (item := line.next_reply()) is not NO_REPLY:
                line.owed -= 1
                reply = item
                if isinstance(item, hiredis.ReplyError):
                    # Loading, a replica now, full, not allowed: perhaps not after a while.
                    raise Refused(f"Redis refuses: {item}") from item
        except LockUnavailable as error:
            self._drop(line, error)
        if line.owed:
            line.quiet_since = time.monotonic()
        return reply

    def _drain(self) -> None:
        """Read late replies that have come meanwhile; give up on masters that owe them too long."""
        for fd, _ in self._poll.poll(0):
            self._receive(self._by_fd[fd])
        now = time.monotonic()
        for line in list(self._lines.values()):
            if line.owed and now - line.quiet_since > DROP_SECONDS:
                self._drop(line, LockUnavailable(f"A master was silent for {DROP_SECONDS:g} s."))

    def _drop(self, line: Line, error: LockUnavailable) -> None:
        # Not its fileno: a broken one has none any more.
        for fd in [fd for fd, known in self._by_fd.items() if known is line]:
            self._poll.unregister(fd)
            del self._by_fd[fd]
        self._lines.pop(line.master, None)
        line.close()
        if isinstance(error, Disconnected):
            line.master.error = error  # worth a new connection at once
        else:
            line.master.down(error)

    def _mend(self) -> None:
        """Start what is missing, take in what has come up; wait only while there is no majority."""
        with self._settled:
            for master in self.masters:
                known = master in self._lines or master in self._dialling
                if not known and not self._waits_for(master) and master.may_dial():
                    threading.Thread(
                        target=self._dial, args=(master,), name="redlock-dial", daemon=True
                    ).start()
                    self._dialling.add(master)  # `_dial` waits for what is held here
            if self._new or len(self._lines) + len(self._dialled) < self.majority:
                self._settled.wait_for(lambda: not self._dialling, self.patience)
            if self._new:
                self._settled.wait_for(
                    lambda: not self._dialling or len(self._dialled) >= self.majority,
                    CONNECT_SECONDS,
                )
                self._new = False
            for line in self._dialled:
                if line.master in self._lines:  # a signal struck as its thread was started
                    line.close()
                    continue
                self._lines[line.master] = self._by_fd[line.fileno()] = line
                self._poll.register(line, select.POLLIN)
                if debt := self._debts.pop(line.master, None):
                    self.tell([line], debt)
            self._dialled.clear()

    def _waits_for(self, master: Master) -> bool:
        return any(line.master is master for line in self._dialled)

    def _dial(self, master: Master) -> None:
        """In a thread of its own, for redis-py connects, encrypts and logs in by blocking."""
        line = None
        try:
            line = Line(master)
            master.up()
        except LockUnavailable as error:
            master.down(error)
        finally:
            with self._settled:
                self._dialling.discard(master)
                if line is not None:
                    if self.closed:
                        line.close()
                    else:
                        self._dialled.append(line)
                self._settled.notify_all()
