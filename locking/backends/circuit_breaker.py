"""A circuit breaker per server, shared by all threads of a process.

A server that is down refuses connections at once. A server that does not respond costs each caller
a timeout, and a request may call it several times. The first timeout therefore opens the circuit
breaker: calls fail at once while one thread probes the server. A reply closes it again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from locking.fork import after_fork_in_child

logger = logging.getLogger("locking")

PROBE_INTERVAL = 0.2
"""Seconds between two probes of a server that does not respond."""


class CircuitBreaker:
    """The circuit breaker of one server; `probe` returns when the server responds, else raises."""

    def __init__(self, server: str, probe: Callable[[], object]) -> None:
        self._server = server
        self._probe = probe
        self.reset()
        # The probing thread exists only in the parent.
        after_fork_in_child(self.reset)

    def reset(self) -> None:
        """Close the circuit breaker; also in a forked child."""
        self.is_open = False
        self._guard = threading.Lock()

    def open(self) -> None:
        """Open the circuit breaker after a timeout; it closes when `probe` succeeds."""
        try:
            with self._guard:
                if self.is_open:
                    return
                self.is_open = True
            logger.warning("%s does not respond: calls fail until it recovers", self._server)
            threading.Thread(target=self._run, name="circuit-breaker", daemon=True).start()
        except BaseException as error:
            self.is_open = False  # without a probing thread it would stay open forever
            if not isinstance(error, RuntimeError):  # the process cannot start another thread
                raise

    def _run(self) -> None:
        opened_at = time.monotonic()
        while True:
            try:
                self._probe()
                break
            except Exception:  # noqa: BLE001 - each client has errors of its own
                time.sleep(PROBE_INTERVAL)
        self.is_open = False
        logger.warning("%s responds again after %.1f s", self._server, time.monotonic() - opened_at)
