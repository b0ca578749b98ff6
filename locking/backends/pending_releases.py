"""Releases without a reply, which are repeated until the store responds.

A store that is interrupted for a moment may lose the message that frees a lock. Without a repeated
release, the lock would then stay held without a holder for its ttl.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from locking.exceptions import LockUnavailable
from locking.fork import after_fork_in_child
from locking.threads import HelperThread

logger = logging.getLogger("locking")

REPEAT_DELAY = 0.05
"""Seconds between two attempts while the store does not respond."""


class PendingReleases:
    """Calls each release until it gets a reply; in one thread, which ends when none is left.

    A release must name its owner, so that a late one leaves the lock of a later holder alone. The
    ttl frees the lock if this process ends first.
    """

    def __init__(self) -> None:
        self._thread = HelperThread("pending-releases")
        self.reset()
        after_fork_in_child(self.reset)

    def reset(self) -> None:
        """Start without releases; also in a forked child, where they are the parent's."""
        self._left = set[Callable[[], object]]()

    @property
    def is_idle(self) -> bool:
        """Return True once no release is left to repeat."""
        return not self._left

    def add(self, release: Callable[[], object], ttl: float) -> None:
        """Call `release` in the background until it gets a reply or `ttl` seconds have passed."""
        self._left.add(release)
        try:
            self._thread.submit(partial(self._call, release, time.monotonic() + ttl))
        except RuntimeError:  # the process cannot start a thread now
            self._left.discard(release)
            logger.warning("Cannot repeat a release: its lock stays held for up to its ttl")

    def _call(self, release: Callable[[], object], until: float) -> None:
        try:
            release()
        except LockUnavailable:
            if release in self._left and time.monotonic() < until:
                time.sleep(REPEAT_DELAY)
                self._thread.submit(partial(self._call, release, until))  # behind the others
                return
        except Exception:  # the other releases must still be repeated
            logger.exception("A release cannot be repeated: its lock stays held for its ttl")
        self._left.discard(release)
        if not self._left:
            self._thread.end()
