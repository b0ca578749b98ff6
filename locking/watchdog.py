"""One thread per process that renews every lease which asked for it.

A lease is renewed every third of its ttl. A renewal that gets no answer is tried again until the
lease's own deadline, and only the store's word or that deadline ends it: the holder is then told
through `lease.lost`. The thread starts with the first lease and again in a forked child.
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
"""Seconds between two looks while no lease is held."""


class Watchdog:
    """Renews leases. Adding and removing cost a set operation; it sleeps until one is due."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start without leases and without a thread; also in a forked child."""
        self._leases: set[Lease] = set()
        self._wake = threading.Condition()
        self._next = math.inf
        self._thread: threading.Thread | None = None

    def add(self, lease: Lease) -> None:
        """Renew `lease` until it is removed or lost."""
        self._leases.add(lease)
        if self._thread is None or lease.renew_at < self._next:
            with self._wake:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
                    thread.start()  # which may fail, and must then be tried again
                    self._thread = thread
                self._wake.notify()

    def remove(self, lease: Lease) -> None:
        """Leave `lease` alone from now on."""
        self._leases.discard(lease)

    def clear(self) -> None:
        """Renew none of the leases added so far."""
        self._leases.clear()

    def look_again(self, lease: Lease) -> None:
        """The lease's renewal has moved, perhaps to before the one that this thread awaits."""
        if lease in self._leases and lease.renew_at < self._next:
            self.add(lease)

    def __len__(self) -> int:
        return len(self._leases)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._next = math.inf  # whoever adds from here on wakes this thread
                leases = list(self._leases.copy())
                # With nothing to renew, look now and then rather than be woken by each lease.
                idle = time.monotonic() + IDLE
                self._next = min((lease.renew_at for lease in leases), default=idle)
                pause = self._next - time.monotonic()
                if pause > 0:
                    self._wake.wait(min(pause, threading.TIMEOUT_MAX))
                    continue
            for lease in leases:
                if lease.renew_at <= time.monotonic() and lease in self._leases:
                    self._renew(lease)

    def _renew(self, lease: Lease) -> None:
        from locking.lease import extend

        if lease.lost or lease.orphaned:
            self.remove(lease)
            lease.mark_lost()
            if lease.orphaned:  # nobody is left to release it: it ends with its ttl
                lease.forget()
            return
        try:
            extend(lease)
        except LockLost:
            self.remove(lease)
        except LockError:
            lease.renew_at = time.monotonic() + lease.claim.ttl / RETRIES_PER_TTL
            lease.log(logging.WARNING, "lease not renewed, will retry")
        except Exception:  # noqa: BLE001 - told, and tried again
            lease.renew_at = time.monotonic() + lease.claim.ttl / RETRIES_PER_TTL
            lease.log(logging.ERROR, "lease not renewed, will retry", exc_info=True)


watchdog = Watchdog()
after_fork_in_child(watchdog.forget)
