"""A stall detector for database servers that stop responding.

The time limits of the clients are whole seconds, and each statement waits for its own. Here one
thread per server checks the waits of its process. When a reply takes longer than STALL_AFTER, the
thread sends a query on its own connection. If that gets no reply either, the server has stalled:
all waits raise OperationalError now, and new ones at once until the server responds (a circuit
breaker). A server that is only slow replies to the thread, and no statement is aborted.
"""

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from locking.backends.circuit_breaker import CircuitBreaker
from locking.fork import after_fork_in_child

STALL_AFTER = 0.2
"""Seconds after which a reply is late and the thread queries the server."""
CHECK_INTERVAL = 0.1
PROBE_TIMEOUT = 0.6
"""Seconds in which a server must reply to the thread. The sum of the three bounds the wait for a
stalled server."""

Ask = Callable[[Any, float], Any]
_guard = threading.Lock()
"""Held while a wait ends, so that no connection that is being aborted is closed."""


class StallDetector:
    """Watches the waits of this process for one server.

    `ask(connection, seconds)` sends a query, on a new connection if it gets None, and returns the
    connection, or raises without a reply in time. `error` is the driver's.
    """

    def __init__(self, server: str, ask: Ask, error: type[Exception]) -> None:
        self._ask, self._error = ask, error
        self._breaker = CircuitBreaker(f"The database at {server}", self._probe)
        self._connection, self._asks = None, threading.Lock()
        self._responded_at = 0.0
        self._waits: dict[Any, float] = {}
        threading.Thread(target=self._run, name="database-stall-detector", daemon=True).start()

    def start(self, waiter: Any) -> None:
        """Record that `waiter` waits from now on. Raise `error` if the server has stalled.

        Its `descriptor` is that of its socket, or -1 while it is opened.
        """
        if self._breaker.is_open:
            raise self._error(2006, "The database has not responded for a while")
        self._waits[waiter] = time.monotonic()

    def stop(self, waiter: Any) -> None:
        """Record that `waiter` does not wait any more."""
        with _guard:
            self._waits.pop(waiter, None)

    def _run(self) -> None:
        self._check()  # usually the server responds: the connection is ready for a later stall
        while True:
            time.sleep(CHECK_INTERVAL)
            now = time.monotonic()
            oldest = min(list(self._waits.values()), default=now)
            # A wait for a lock may be long: the server has responded since it began.
            if now - max(oldest, self._responded_at) > STALL_AFTER:
                self._check()

    def _check(self) -> None:
        if self._breaker.is_open or not self._responds():
            self._breaker.open()
            self.abort_waits()

    def _responds(self) -> bool:
        """Return True if the server replies, even with an error."""
        started = time.monotonic()
        with self._asks, suppress(Exception):  # the driver's, or of the socket
            connection, self._connection = self._connection, None
            self._connection = self._ask(connection, PROBE_TIMEOUT)
            self._responded_at = time.monotonic()
            return True
        return time.monotonic() - started < PROBE_TIMEOUT

    def _probe(self) -> None:
        if not self._responds():
            raise TimeoutError

    def abort_waits(self) -> None:
        """End all waits. A connection that is being opened ends after its connect_timeout."""
        with _guard:  # no connection is closed meanwhile, so no descriptor is reused
            for waiter in list(self._waits):  # others may start to wait meanwhile
                with suppress(OSError), socket.socket(fileno=os.dup(waiter.descriptor)) as end:
                    end.shutdown(socket.SHUT_RDWR)


_detectors: dict[str, StallDetector] = {}


def detector_for(server: str, ask: Ask, error: type[Exception]) -> StallDetector:
    """Return the process's detector of a server."""
    with _guard:
        if server not in _detectors:
            _detectors[server] = StallDetector(server, ask, error)
        return _detectors[server]


def _reset_after_fork() -> None:
    """Drop the parent's detectors, whose threads do not exist in a forked child."""
    global _guard
    _guard = threading.Lock()
    _detectors.clear()


after_fork_in_child(_reset_after_fork)
