"""One thread per process that extends leases every third of their ttl.

A renewal without a reply is repeated until the lease's deadline. The lease is lost when the store
says so, or at that deadline. The thread starts with the first lease, and again in a forked child.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING

from locking.exceptions import LockError, LockLost
from locking.fork import after_fork_in_child

if TYPE_CHECKING:
    from locking.lease import Lease

RETRIES_PER_TTL = 20

IDLE = 1.0
"""Seconds between two checks while there is nothing to renew."""


class Watchdog:
    """Renews leases; adding and removing one costs a set operation."""

    def __init__(self) -> None:
        self.reset()
        after_fork_in_child(self.reset)

    def reset(self) -> None:
        """Start without leases and without a thread, as in a forked child."""
        self.leases: set[Lease] = set()
        """The leases that are renewed."""
        self._wake = threading.Condition()
        self.next_renewal = math.inf
        """Monotonic time at which the thread wakes; a lease that is due earlier must wake it."""
        self.thread: threading.Thread | None = None

    def add(self, lease: Lease) -> None:
        """Renew `lease` until it is removed or lost."""
        self.leases.add(lease)
        if self.thread is None or lease.renew_at < self.next_renewal:
            with self._wake:
                if self.thread is None:
                    thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
                    thread.start()  # if this fails, the next lease must try again
                    self.thread = thread
                self._wake.notify()

    def remove(self, lease: Lease) -> None:
        """Stop renewing `lease`."""
        self.leases.discard(lease)

    def reschedule(self, lease: Lease) -> None:
        """Wake the thread if the lease's next renewal is now the first one due."""
        if lease in self.leases and lease.renew_at < self.next_renewal:
            self.add(lease)

    def _run(self) -> None:
        while True:
            with self._wake:
                self.next_renewal = math.inf  # from here on, `add` wakes this thread
                leases = list(self.leases.copy())
                # Without leases, check now and then instead of being woken by every new one.
                idle = time.monotonic() + IDLE
                self.next_renewal = min((lease.renew_at for lease in leases), default=idle)
                pause = self.next_renewal - time.monotonic()
                if pause > 0:
                    self._wake.wait(min(pause, threading.TIMEOUT_MAX))
                    continue
            for lease in leases:
                if lease.renew_at <= time.monotonic() and lease in self.leases:
                    self._renew(lease)

    def _renew(self, lease: Lease) -> None:
        if lease.lost or lease.claim.is_abandoned:
            self.remove(lease)
            lease.mark_lost()
            return
        try:
            lease.renew()
        except LockLost:
            self.remove(lease)
        except Exception as error:  # noqa: BLE001 - logged; the thread must survive any error
            lease.renew_at = time.monotonic() + lease.claim.ttl / RETRIES_PER_TTL
            is_expected = isinstance(error, LockError)
            level = logging.WARNING if is_expected else logging.ERROR
            lease.log(level, "lease not renewed, will retry", exc_info=not is_expected)


watchdog = Watchdog()
