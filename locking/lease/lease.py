"""Grants in force, and the operations of their holders."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from locking import metrics
from locking.backends.base import Backend, Claim, Grant
from locking.exceptions import LockError, LockLost
from locking.types import check_ttl
from locking.watchdog import watchdog

logger = logging.getLogger("locking")

OnLost: TypeAlias = "Callable[[Lease], object] | None"

LONGEST_CONFIRM_PAUSE = 1.0
"""Seconds between two attempts to confirm that a kept lock may be released."""

_marking = threading.Lock()


class Lease:
    """A granted lock as its holder sees it, until it is released or lost."""

    def __init__(self, backend: Backend, claim: Claim, grant: Grant, on_lost: OnLost) -> None:
        self.backend = backend
        self.claim = claim
        self.name = claim.name
        self.owner = claim.owner
        """Name of the holder in the store: host:process:thread:secret."""
        self.token = grant.token
        """Number that grows with every grant of this name."""
        claim.token = grant.token
        claim.deadline = grant.deadline
        claim.report_lost = self.mark_lost
        self.count = 1
        """Acquisitions by the holder that are not yet released."""
        self.granted_at = time.monotonic()
        self.renew_at = self.granted_at + claim.ttl / 3
        self.on_lost = on_lost
        self.epoch = 0
        """Epoch of the policy that chose the backend; 0 if the caller named the backend."""
        self.strategy = ""
        """Write strategy of that policy."""
        self._marked_lost = False
        self._confirmations: list[Callable[[], bool]] = []

    @property
    def fence(self) -> tuple[int, int]:
        """Policy epoch and token: grows with every grant, also when the backend is switched."""
        return (self.epoch, self.token)

    @property
    def deadline(self) -> float:
        """Monotonic time at which the grant ends unless it is extended; may be inf."""
        return self.claim.deadline

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; never negative."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def lost(self) -> bool:
        """True if the grant ended before its release: expired, broken or taken over."""
        return self._marked_lost or time.monotonic() >= self.claim.deadline

    @property
    def is_held(self) -> bool:
        """True until the holder releases it; False in a forked child."""
        return self.backend.held.get((self.name, self.claim.caller)) is self

    def check(self) -> None:
        """Raise LockLost if the lease is lost.

        The process may pause right after the check, so writes need the fence as well.
        """
        if self.lost:
            raise LockLost(f"{self.name!r} is no longer held by {self.owner}.")

    def enter_again(self) -> None:
        """Count one more acquisition by the holder; raise LockLost if the lease is lost."""
        self.check()
        self._set_count(self.count + 1)
        self.count += 1

    def release(self) -> None:
        """Undo one acquisition; the last release frees the lock.

        Raise LockLost if the lease was lost; the lock of a later holder is not touched.
        """
        if self.count > 1:
            self.count -= 1
            if not self.lost:
                self._set_count(self.count)
            return
        if self._confirmations and not self.lost:
            self._release_later()
            return
        watchdog.remove(self)
        self.discard()
        known_lost = self.lost
        metrics.released(self.backend.alias, self.name, time.monotonic() - self.granted_at)
        try:
            self.backend.release(self.claim, self.token)
        except LockLost:
            self.mark_lost()
            raise
        if known_lost:
            self.mark_lost()
            raise LockLost(f"{self.name!r} was lost before its release by {self.owner}.")
        self.log(logging.DEBUG, "lock released")

    def release_after(self, confirm: Callable[[], bool]) -> None:
        """Let a thread keep the lock from its release on, until `confirm` returns True.

        For a holder whose last write may still take effect. The caller's release returns at once,
        and the caller may then wait for the lock like any other. `confirm` is called until it
        returns True; an error counts as False. If the process ends, the lock ends as usual.
        """
        self._confirmations.append(confirm)

    def _release_later(self) -> None:
        confirmations, self._confirmations = self._confirmations, []
        self.discard()
        self.claim.caller = self  # which is never abandoned, unlike a thread or a task
        self.backend.held[(self.name, self)] = self
        self.log(logging.WARNING, "lock kept until its holder's last write is decided")
        run = partial(self._release_confirmed, confirmations)
        try:
            threading.Thread(target=run, name="release-later", daemon=True).start()
        except BaseException:  # no thread can be started: the lock ends with its ttl
            watchdog.remove(self)
            self.discard()
            raise

    def _release_confirmed(self, confirmations: Sequence[Callable[[], bool]]) -> None:
        pause, known = 0.01, ""
        while not self.lost:
            try:
                if all(confirm() for confirm in confirmations):
                    break
            except Exception as error:  # noqa: BLE001 - the thread must go on until confirmed
                if str(error) != known:
                    known = str(error)
                    self.log(logging.WARNING, f"lock still kept ({known})")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_CONFIRM_PAUSE)
        try:
            self.release()
        except LockError as error:
            self.log(logging.WARNING, f"kept lock not released ({error})")

    def extend(self, ttl: float) -> None:
        """Move the deadline to `ttl` seconds from now, and renew for this ttl from now on."""
        check_ttl(ttl)
        self.check()
        self.claim.ttl = ttl
        self.renew()

    def renew(self) -> None:
        """Extend the grant by its ttl; mark the lease lost if the store says so."""
        try:
            ttl = None
            while ttl != self.claim.ttl:  # the watchdog and the holder may extend at once
                ttl = self.claim.ttl
                self.claim.deadline = self.backend.extend(self.claim, self.token, ttl)
        except LockLost:
            if self.is_held:  # else the holder released it during the request
                self.mark_lost()
            raise
        self.renew_at = time.monotonic() + self.claim.ttl / 3
        watchdog.reschedule(self)

    def _set_count(self, count: int) -> None:
        try:
            self.backend.set_depth(self.claim, self.token, count)
        except LockLost:
            self.mark_lost()
            raise

    def mark_lost(self) -> None:
        """Record the loss, and call `on_lost` the first time. An abandoned lease is discarded."""
        if self.claim.is_abandoned:  # there is no holder left to release it
            self.discard()
        with _marking:  # the watchdog and the holder may notice the loss at once
            if self._marked_lost:
                return
            self._marked_lost = True
        metrics.lost(self.backend.alias, self.name)
        self.log(logging.WARNING, "lock lost")
        if self.on_lost is not None:
            try:
                self.on_lost(self)
            except Exception:  # noqa: BLE001 - an error of the callback must not stop the caller
                self.log(logging.ERROR, "on_lost failed", exc_info=True)

    def discard(self) -> None:
        """Remove the lease from the backend's list without freeing the lock in the store."""
        if self.is_held:  # the watchdog and the holder may both discard it
            self.backend.held.pop((self.name, self.claim.caller), None)

    def log(self, level: int, event: str, *, exc_info: bool = False) -> None:
        """Log `event` with the lease's name, owner, token and backend, as text and as fields."""
        if not logger.isEnabledFor(level):
            return
        fields = {
            "lock_name": self.name,
            "lock_owner": self.owner,
            "lock_token": self.token,
            "lock_backend": self.backend.alias,
        }
        line = "%s name=%r owner=%s token=%d backend=%s"
        logger.log(level, line, event, *fields.values(), exc_info=exc_info, extra=fields)

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} token={self.token} owner={self.owner} lost={self.lost}>"
