"""Releases without a reply, which are repeated until the store responds.

A store that is interrupted for a moment may lose the message that frees a lock. Without a repeated
release, the lock would then stay held without a holder for its ttl.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from locking.exceptions import LockUnavailable
from locking.fork import after_fork_in_child

logger = logging.getLogger("locking")

REPEAT_DELAY = 0.05
"""Seconds between two attempts while the store does not respond."""


class PendingReleases:
    """Calls each release until it gets a reply; one thread, which ends when none is left.

    A release must name its owner, so that a late one leaves the lock of a later holder alone. The
    ttl frees the lock if this process ends first.
    """

    def __init__(self) -> None:
        self.reset()
        after_fork_in_child(self.reset)

    def reset(self) -> None:
        """Start without releases; also in a forked child, where they are the parent's."""
        self._guard = threading.Lock()
        self._pending: deque[tuple[float, Callable[[], object]]] = deque()
        self._is_running = False

    @property
    def is_idle(self) -> bool:
        """Return True once no release is left to repeat."""
        return not self._is_running

    def add(self, release: Callable[[], object], ttl: float) -> None:
        """Call `release` in the background until it gets a reply or `ttl` seconds have passed."""
        with self._guard:
            self._pending.append((time.monotonic() + ttl, release))
            if self._is_running:
                return
            try:
                threading.Thread(target=self._run, name="pending-releases", daemon=True).start()
                self._is_running = True
            except RuntimeError:  # the process cannot start a thread now: the next call tries again
                logger.warning("Cannot repeat a release: its lock stays held for up to its ttl")

    def _run(self) -> None:
        while True:
            with self._guard:
                if not self._pending:
                    self._is_running = False
                    return
                until, release = self._pending.popleft()
            try:
                release()
            except LockUnavailable:
                if time.monotonic() < until:
                    # Oldest first, as it is most likely to hold a lock. But a release that the
                    # store keeps refusing lets the next one pass.
                    self._pending.insert(1, (until, release))
                    time.sleep(REPEAT_DELAY)
            except Exception:  # the other releases must still be repeated
                logger.exception("A release cannot be repeated: its lock stays held for its ttl")
