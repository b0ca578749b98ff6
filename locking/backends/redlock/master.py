"""One of the masters: its state for all threads of this process, and one connection to it."""

from __future__ import annotations

import random
import ssl
import threading
import time

from locking.backends.redis.connection import READ_SIZE, Connection
from locking.exceptions import LockUnavailable

CONNECT_TIMEOUT = 1.0
"""Seconds to open a connection, and that a new quorum waits for a majority."""
RECONNECT_DELAY = (0.1, 1.0)
"""First and longest delay in seconds between attempts to reach a master that is down."""


class Master:
    """A master, as all threads of this process see it."""

    def __init__(self, url: str, restart_delay: float) -> None:
        self.url = url
        self.restart_delay = restart_delay
        self.error: BaseException | None = None
        """The last error of a connection to it, None while it is up."""
        self._guard = threading.Lock()
        self._failures = 0
        self._connect_from = 0.0

    def may_connect(self) -> bool:
        """Return True if the caller should connect: while it is down, once per delay."""
        with self._guard:
            now = time.monotonic()
            if self._failures and now < self._connect_from:
                return False
            self._connect_from = now + CONNECT_TIMEOUT * 2  # until this attempt has ended
            return True

    def mark_up(self) -> None:
        """Record a successful connection."""
        with self._guard:
            self._failures, self.error = 0, None

    def mark_down(self, error: BaseException) -> None:
        """Record a failed connection; the next attempt waits for a growing delay."""
        with self._guard:
            first, longest = RECONNECT_DELAY
            delay = min(longest, first * 2 ** min(self._failures, 10))
            self._failures += 1
            self._connect_from = time.monotonic() + delay * random.uniform(0.8, 1.0)
            self.error = error


class MasterConnection(Connection):
    """A connection to one master that does not block after it was opened.

    It stays open after an exception of a signal handler: the command has to be undone on it.
    """

    close_on = Exception

    def __init__(self, master: Master) -> None:
        super().__init__(master.url, timeout=CONNECT_TIMEOUT, connect_timeout=CONNECT_TIMEOUT)
        self.master = master
        self.due = 0
        """Number of replies that have not arrived yet."""
        self.due_since = 0.0
        """Monotonic time since which a reply is due and nothing has arrived."""
        self.votes_from = 0.0
        """Monotonic time from which this master may vote, see `restart_delay`."""
        if master.restart_delay:
            asked_at = time.monotonic()
            # Start and end of its uptime are whole seconds: it may have started one second later.
            uptime = float(_field(self.command("INFO", "server"), "uptime_in_seconds")) - 1
            self.votes_from = asked_at + master.restart_delay - uptime
        self.socket.setblocking(False)
        self._pending = getattr(self.socket, "pending", int)  # what TLS has already decoded

    def receive(self) -> None:
        """Read what has arrived."""
        try:
            data = self.socket.recv(READ_SIZE)
            while data and self._pending():
                data += self.socket.recv(READ_SIZE)
            if not data:
                raise EOFError("the server closed it")
            self._reader.feed(data)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except Exception as error:
            self._fail(error)
            raise


def _field(info: str, name: str) -> str:
    for line in info.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value
    raise LockUnavailable(f"Redis did not return {name} in INFO.")
