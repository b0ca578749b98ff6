"""The active lock backend and write strategy, and the switch to others while a sale runs.

A process acts on a policy that it read at most `MAX_AGE` ago. A switch therefore passes through
the state DRAINING: after `MAX_AGE`, no process grants under the old backend any more (a later grant
is released, see `policy.lock`). When the old holders have finished, or their longest lease has
ended, one UPDATE activates the new backend and increases the epoch. The epoch is the first part of
every fence, so a holder of the old backend cannot write after a holder of the new one, not even
after a forced switch.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import DatabaseError, connections, transaction
from django.db.models import F
from django.db.models.functions import Greatest
from django.utils import timezone

from locking.exceptions import LockError, LockMisuse, LockTimeout, LockUnavailable
from locking.handler import locks
from locking.models import LockPolicy, LockPolicyChange, WriteStrategy
from locking.refresh import RefreshingCache

logger = logging.getLogger("locking")

MAX_AGE = 1.0
"""Seconds for which a process may act on the policy that it read."""
FRESH = 0.5
"""Seconds after which one thread reads the policy again while the others use the previous one."""
DRAIN_POLL = 0.02
"""Seconds between two checks of a drain."""
SWITCH_GRACE = 5.0
"""Seconds after the longest lease at which any process finishes a switch, or cancels it if a holder
still renews its lock. Covers the difference between the clocks of two machines."""

IDEMPOTENCY_PREFIX = "idempotency:"
DRAIN_EXEMPT = (IDEMPOTENCY_PREFIX, "build:")
"""Prefixes of names that are locked independently of the policy; no switch waits for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The policy as one process read it."""

    backend: str
    strategy: str
    epoch: int
    draining: bool
    read_at: float
    """Monotonic time before the read."""

    @property
    def is_safe(self) -> bool:
        """False for naive writes: nothing but the lock guards the stock, and any lock can fail."""
        return self.strategy != WriteStrategy.NAIVE


_cache: RefreshingCache[int, Policy] = RefreshingCache()


def current(max_age: float | None = None) -> Policy:
    """Return the active policy, read at most `max_age` (default MAX_AGE) seconds ago.

    Raise LockUnavailable if it has to be read and the database does not respond.
    """
    return _cache.get(1, _read, fresh=FRESH, max_age=MAX_AGE if max_age is None else max_age)


def _read() -> Policy:
    read_at = time.monotonic()
    row = stored_policy()
    return Policy(
        backend=row.backend,
        strategy=row.strategy,
        epoch=row.epoch,
        draining=row.state == LockPolicy.State.DRAINING,
        read_at=read_at,
    )


def stored_policy() -> LockPolicy:
    """Return the policy row, created from LOCK_POLICY if it does not exist.

    Raise LockUnavailable if the database does not reply.
    """
    start = {name: settings.LOCK_POLICY[name.upper()] for name in ("backend", "strategy")}
    try:
        return LockPolicy.objects.get_or_create(pk=1, defaults=start)[0]
    except DatabaseError as error:
        problem = "The lock policy cannot be read: the database is unavailable."
        raise LockUnavailable(problem) from error


def invalidate() -> None:
    """Read the policy again at the next use."""
    _cache.clear()


def switch(
    *,
    backend: str,
    strategy: str | None = None,
    changed_by: str = "",
    reason: str = "",
    force: bool = False,
    beyond: int = 0,
    wait: bool = True,
) -> LockPolicy:
    """Activate another backend or write strategy, and return the policy row.

    Blocks while the old holders finish: at least MAX_AGE, and at most MAX_AGE plus the old
    backend's ttl plus SWITCH_GRACE. Without `wait`, only begin; `finish_switch` must follow. With
    `force`, do not wait for holders, which is meant for an old backend that is unavailable. The new
    epoch will exceed `beyond`; a policy restored from a dump does not know later epochs.

    Raise LockUnavailable if the new backend does not reply, and LockMisuse if an argument is wrong
    or another switch is in progress; nothing is changed then. Raise LockTimeout if a holder
    remains; the switch is then cancelled.
    """
    if backend not in locks:
        raise LockMisuse(f"There is no lock backend {backend!r}; there are: {', '.join(locks)}.")
    row = stored_policy()
    strategy = strategy or row.strategy
    if strategy not in WriteStrategy.values:
        raise LockMisuse(f"Unknown strategy {strategy!r}; there are: {WriteStrategy.values}.")
    locks[backend].probe()
    startable = LockPolicy.objects.filter(pk=1)
    if not force:
        startable = startable.filter(state=LockPolicy.State.STEADY)
    # Durable: inside a caller's transaction no other process would see the draining state.
    with transaction.atomic(durable=True):
        started = startable.update(
            state=LockPolicy.State.DRAINING,
            epoch=Greatest(F("epoch"), beyond),
            next_backend=backend,
            next_strategy=strategy,
            changed_by=changed_by[:150],
            reason=reason[:200],
            changed_at=timezone.now(),
        )
    if not started:
        problem = "Another switch is in progress: wait for it, cancel it, or force this one."
        raise LockMisuse(problem)
    invalidate()
    return finish_switch(force=force) if wait else stored_policy()


def cancel_switch(begun_at: datetime | None = None) -> bool:
    """Stop draining and keep the old backend; return False if no switch was in progress.

    With `begun_at`, cancel only the switch that began at this time.
    """
    switching = LockPolicy.objects.filter(pk=1, state=LockPolicy.State.DRAINING)
    if begun_at is not None:
        switching = switching.filter(changed_at=begun_at)
    cancelled = switching.update(state=LockPolicy.State.STEADY, next_backend="", next_strategy="")
    invalidate()
    return bool(cancelled)


def finish_switch(*, force: bool = False) -> LockPolicy:
    """Wait until the old holders have finished, then activate the new backend.

    Any process may do this, not only the one that began the switch.
    """
    row = stored_policy()
    while row.state == LockPolicy.State.DRAINING:
        if force or drained(row):
            _activate(row, forced=force)
        elif timezone.now() > latest_end(row):
            cancel_switch(row.changed_at)
            raise LockTimeout(
                f"Switch cancelled: a lock in {row.backend!r} is still held and being renewed. "
                "Find the holder with 'manage.py locks', then try again or force the switch."
            )
        else:
            time.sleep(DRAIN_POLL)
        row = stored_policy()
    invalidate()
    return row


def finish_overdue_switch() -> None:
    """Finish or cancel a switch whose process died. Called by processes that see it draining."""
    row = stored_policy()
    if row.state == LockPolicy.State.DRAINING and timezone.now() > latest_end(row):
        _finish_quietly()


def finish_in_background() -> None:
    """Run `finish_switch` in a thread. If this process dies, another one finishes the switch."""

    def run() -> None:
        try:
            _finish_quietly()
        finally:
            connections.close_all()  # only the connections of this thread

    threading.Thread(target=run, name="finish-switch", daemon=True).start()


def _finish_quietly() -> None:
    try:
        finish_switch()
    except (LockError, DatabaseError, RuntimeError) as error:  # RuntimeError: in a transaction
        logger.warning("Switch not finished by this process: %s", error)


def drained(row: LockPolicy) -> bool:
    """Return whether no caller can still hold a lock of the old backend.

    A lease that is renewed never ends, so a backend that lists its holders must list none. For
    other backends, and for a store that does not reply and so renews nothing, the ttl decides.
    """
    age = (timezone.now() - row.changed_at).total_seconds()
    if age < MAX_AGE:
        return False
    old = locks[row.backend]
    if old.capabilities.lists_holders:
        with suppress(LockUnavailable):
            return all(held.name.startswith(DRAIN_EXEMPT) for held in old.inspect())
    return age >= MAX_AGE + old.ttl


def latest_end(row: LockPolicy) -> datetime:
    """Return the time by which the switch in progress is finished or cancelled."""
    return row.changed_at + timedelta(seconds=MAX_AGE + locks[row.backend].ttl + SWITCH_GRACE)


def _activate(row: LockPolicy, *, forced: bool) -> None:
    with transaction.atomic(durable=True):
        activated = LockPolicy.objects.filter(
            pk=1, epoch=row.epoch, state=LockPolicy.State.DRAINING, changed_at=row.changed_at
        ).update(
            backend=row.next_backend,
            strategy=row.next_strategy,
            epoch=F("epoch") + 1,
            state=LockPolicy.State.STEADY,
            next_backend="",
            next_strategy="",
            changed_at=timezone.now(),
        )
        if activated:  # else another process was first
            waited = max(timedelta(), timezone.now() - row.changed_at)
            LockPolicyChange.objects.create(
                epoch=row.epoch + 1,
                from_backend=row.backend,
                from_strategy=row.strategy,
                to_backend=row.next_backend,
                to_strategy=row.next_strategy,
                changed_by=row.changed_by,
                reason=row.reason,
                forced=forced,
                drained_ms=waited // timedelta(milliseconds=1),
            )
