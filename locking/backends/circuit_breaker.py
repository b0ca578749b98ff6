"""Servers that stopped answering: found out once in a process, not by each request anew.

A server that is gone refuses at once, which costs nothing. One that is silent (its machine, or the
network on the way) costs whoever asks it a time-out, and a request asks more than once. So whoever
waited in vain begins a silence; until the server is heard again nobody but one thread asks it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Self

from locking.fork import after_fork_in_child

logger = logging.getLogger("locking")

PAUSE = 0.2
"""Seconds between two tries to hear a silent server."""


class Silence:
    """Whether one server is silent, as far as this process knows."""

    def __init__(self, server: str, hear: Callable[[], object]) -> None:
        self._server = server
        self._hear = hear
        self.forget()
        # The thread that ends a silence exists only in the parent.
        after_fork_in_child(self.forget)

    def forget(self) -> None:
        """As far as this process knows, which is new, it is not silent."""
        self.is_on = False
        self._guard = threading.Lock()

    def __deepcopy__(self, memo: object) -> Self:
        """One for all: redis-py gives each connection a copy of the `Retry` that holds it."""
        return self

    def begin(self) -> None:
        """Somebody waited for an answer in vain. It ends when `hear` returns without an error."""
        try:
            with self._guard:
                if self.is_on:
                    return
                self.is_on = True
            logger.warning("%s is silent: nobody asks it until it is heard", self._server)
            threading.Thread(target=self._listen, name="listen", daemon=True).start()
        except BaseException as error:
            self.is_on = False  # nobody listens: each finds out for himself
            if not isinstance(error, RuntimeError):  # no more threads
                raise

    def _listen(self) -> None:
        began = time.monotonic()
        while True:
            try:
                self._hear()
                break
            except Exception:  # noqa: BLE001 - each client has errors of its own
                time.sleep(PAUSE)
        self.is_on = False
        logger.warning("%s is heard after %.1f s", self._server, time.monotonic() - began)
