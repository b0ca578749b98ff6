"""Threads that extend leases every third of their ttl: one for each backend and process.

`Lease.renew` calls the backend's `extend`. A store that does not respond costs no lease of another
store. A renewal without a reply is repeated until the lease's deadline. The lease is lost when the
store says so, or at that deadline: `Lease.mark_lost` then has `on_lost` called, in another thread,
and the end of the holder's block raises LockLost.

A thread starts with the first lease, and again in a forked child; no error ends it. It leaves the
requests to a helper thread: if one of them gets no reply, another thread renews the next leases.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Protocol

from locking.claims import Claim
from locking.exceptions import LockError, LockLost
from locking.threads import HelperThread

logger = logging.getLogger("locking")

RETRIES_PER_TTL = 20

PATIENCE = 0.1
"""Seconds without a reply after which another thread makes the next request."""
MAX_UNANSWERED = 8
"""Most requests to one backend without a reply; more would not help if the store is down."""

IDLE = 1.0
"""Longest time in seconds between two checks of leases that need no renewal."""
IDLE_CHECKS = 5
"""Checks without a lease after which the thread ends; the next lease starts it again."""


class _Lease(Protocol):
    """The part of a lease that the watchdog uses; `locking.lease.lease` imports this module."""

    claim: Claim
    renew_at: float
    hold_until: float

    @property
    def deadline(self) -> float: ...
    @property
    def lost(self) -> bool: ...
    def renew(self) -> None: ...
    def give_up(self, reason: str) -> None: ...
    def mark_lost(self) -> None: ...
    def log(self, level: int, event: str, *, exc_info: bool = False) -> None: ...


class Renewer:
    """The watchdog of one backend; adding and removing a lease costs a set operation."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.leases: set[_Lease] = set()
        """The leases to renew, and those whose `max_hold` or whose holder may end."""
        self._wake = threading.Condition()
        self.next_renewal = math.inf
        """Monotonic time at which the thread wakes; a lease that is due earlier must wake it."""
        self.thread: threading.Thread | None = None
        self.helper = HelperThread(f"renewals-{alias}")
        self.unanswered: list[Future[None]] = []
        """Requests without a reply in time, each in a thread of its own."""
        self._pending: set[_Lease] = set()
        """Leases whose renewal has no reply yet."""

    def add(self, lease: _Lease) -> None:
        """Renew `lease` until it is removed or lost."""
        self.leases.add(lease)
        if self.thread is None or lease.renew_at < self.next_renewal:
            with self._wake:
                if self.thread is None:
                    name = f"watchdog-{self.alias}"
                    thread = threading.Thread(target=self._run, name=name, daemon=True)
                    thread.start()  # if this fails, the next lease must try again
                    self.thread = thread
                self._wake.notify()

    def remove(self, lease: _Lease) -> None:
        """Stop renewing `lease`."""
        self.leases.discard(lease)

    def reschedule(self, lease: _Lease) -> None:
        """Wake the thread if the lease's next renewal is now the first one due."""
        if lease in self.leases and lease.renew_at < self.next_renewal:
            self.add(lease)

    def _run(self) -> None:
        idle_checks = 0
        while not (idle_checks > IDLE_CHECKS and self._may_end()):
            idle_checks = 0 if self.leases else idle_checks + 1
            try:
                self._run_once()
            except BaseException:  # without this thread, every lease would end
                logger.exception("Watchdog of %s failed, continuing", self.alias)
                time.sleep(IDLE / RETRIES_PER_TTL)

    def _may_end(self) -> bool:
        with self._wake:
            self.thread = None  # from here on, `add` starts a thread
            if self.leases:  # this one was added before that
                self.thread = threading.current_thread()
                return False
        self.helper.end()
        return True

    def _run_once(self) -> None:
        with self._wake:
            self.next_renewal = math.inf  # from here on, `add` wakes this thread
            leases = list(self.leases.copy())
            # Without leases, check now and then instead of being woken by every new one.
            idle = time.monotonic() + IDLE
            self.next_renewal = min((lease.renew_at for lease in leases), default=idle)
            pause = min(self.next_renewal, idle) - time.monotonic()
            if pause > 0:
                self._wake.wait(pause)
        # The one that ends first comes first: a renewal may take long.
        for lease in sorted(leases, key=lambda lease: lease.deadline):
            if lease not in self.leases:
                continue
            if lease in self._pending:
                if lease.lost:
                    self.remove(lease)
                    lease.mark_lost()
            elif lease.claim.is_abandoned:
                ended = "lock released: its thread or task has ended"
                self._perform(partial(lease.give_up, ended))
            elif lease.renew_at <= time.monotonic():
                self._perform(partial(self._renew, lease))

    def _perform(self, request: Callable[[], None]) -> None:
        """Let a helper thread make a request; do not wait for its reply while another is late."""
        while len(late := [one for one in self.unanswered if not one.done()]) >= MAX_UNANSWERED:
            wait(late, PATIENCE, FIRST_COMPLETED)
        self.unanswered = late
        try:
            asked = self.helper.submit(partial(self._attempt, request))
        except RuntimeError:  # no more threads
            self._attempt(request)
            return
        wait([asked], 0 if late else PATIENCE)
        if not asked.done():
            self.helper.end()  # after this request: the next one gets another thread
            late.append(asked)

    def _attempt(self, request: Callable[[], None]) -> None:
        try:
            request()
        except BaseException:  # the other leases need their renewal
            logger.exception("Watchdog of %s failed, continuing", self.alias)

    def _renew(self, lease: _Lease) -> None:
        lease.renew_at = lease.deadline  # without a reply, look at it again when it ends
        self._pending.add(lease)
        try:
            self._ask(lease)
        finally:
            self._pending.discard(lease)
            self.reschedule(lease)

    def _ask(self, lease: _Lease) -> None:
        if time.monotonic() >= lease.hold_until:
            lease.give_up("lock released: it was held for its max_hold")
            return
        if lease.lost:
            self.remove(lease)
            lease.mark_lost()
            return
        try:
            lease.renew()
        except LockLost:
            self.remove(lease)
        except BaseException as error:  # noqa: BLE001 - logged; the thread must survive any error
            lease.renew_at = time.monotonic() + lease.claim.ttl / RETRIES_PER_TTL
            is_expected = isinstance(error, LockError)
            level = logging.WARNING if is_expected else logging.ERROR
            lease.log(level, "lease not renewed, will retry", exc_info=not is_expected)
