"""Which lock is in force, and how one is put in the place of another while buyers buy.

A process acts on a policy that it read at most `MAX_AGE` ago. A switch therefore goes through
DRAINING: after `MAX_AGE` no process grants under the old backend any more (a grant that comes later
is given back, see `policy.lock`); when the old holders are gone, or their longest lease is over,
one UPDATE brings the new backend and epoch + 1. The epoch stands in front of every fencing token,
so that even a forced switch cannot let a holder of the old backend write after one of the new.
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
"""Seconds after which one thread reads it again while the others go on."""
DRAIN_POLL = 0.02
OVERDUE = 5.0
"""Seconds beyond the longest lease after which any process finishes a switch, or cancels it for a
holder that will not go; also covers the difference between two machines' clocks."""

SAFE_EXCLUSION = "machines"
BESIDE = "idempotency:"
NOT_WAITED_FOR = (BESIDE, "build:")
"""Names that begin so are locked whatever the policy says: no switch waits for them."""


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
        """False where the shop can oversell: naive writes need a lock that reaches all machines."""
        exclusion = locks[self.backend].capabilities.exclusion
        return self.strategy != WriteStrategy.NAIVE or exclusion == SAFE_EXCLUSION


_cache: RefreshingCache[int, Policy] = RefreshingCache()


def current(max_age: float | None = None) -> Policy:
    """Return the policy in force, read at most `max_age` (default MAX_AGE) seconds ago.

    Raise LockUnavailable if it has to be read and the database does not respond.
    """
    return _cache.get(1, _read, fresh=FRESH, max_age=MAX_AGE if max_age is None else max_age)


def _read() -> Policy:
    read_at = time.monotonic()
    row = _row()
    return Policy(
        backend=row.backend,
        strategy=row.strategy,
        epoch=row.epoch,
        draining=row.state == LockPolicy.State.DRAINING,
        read_at=read_at,
    )


def _row() -> LockPolicy:
    start = {
        "backend": settings.LOCK_POLICY["BACKEND"],
        "strategy": settings.LOCK_POLICY["STRATEGY"],
    }
    try:
        row = LockPolicy.objects.filter(pk=1).first()
        return row or LockPolicy.objects.get_or_create(pk=1, defaults=start)[0]
    except DatabaseError as error:
        raise LockUnavailable("The lock policy cannot be read: no database.") from error


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
) -> LockPolicy:
    """Put another backend or strategy in force, and return the policy then in force.

    Probes the target first; LockUnavailable leaves everything as it was. Blocks while the old
    holders drain: MAX_AGE at least, and at most that plus the old backend's ttl and OVERDUE; then
    LockTimeout, and the old backend stays. `force` does not wait, which is for an old backend that
    is dead. The new epoch exceeds `beyond`, too: a restored policy knows no epoch after its dump.
    """
    begin_switch(
        backend=backend,
        strategy=strategy,
        changed_by=changed_by,
        reason=reason,
        force=force,
        beyond=beyond,
    )
    return finish_switch(force=force)


def begin_switch(
    *,
    backend: str,
    strategy: str | None = None,
    changed_by: str = "",
    reason: str = "",
    force: bool = False,
    beyond: int = 0,
) -> LockPolicy:
    """Probe the target and start draining; LockMisuse when another switch is under way."""
    if backend not in locks:
        raise LockMisuse(f"There is no lock backend {backend!r}; there are: {', '.join(locks)}.")
    row = _row()
    strategy = strategy or row.strategy
    if strategy not in WriteStrategy.values:
        raise LockMisuse(f"{strategy!r} is no strategy; there are: {WriteStrategy.values}.")
    locks[backend].probe()
    startable = LockPolicy.objects.filter(pk=1)
    if not force:
        startable = startable.filter(state=LockPolicy.State.STEADY)
    # Durable: inside a caller's transaction nobody would see it drain.
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
        raise LockMisuse("A switch is under way: wait for it, cancel it or force this one.")
    invalidate()
    return _row()


def cancel_switch() -> bool:
    """Stop draining and stay with the old backend; False when nothing was draining."""
    return _cancel()


def _cancel(**only: object) -> bool:
    """Stay with the old backend, where the switch is `only` this one."""
    cancelled = LockPolicy.objects.filter(pk=1, state=LockPolicy.State.DRAINING, **only).update(
        state=LockPolicy.State.STEADY, next_backend="", next_strategy=""
    )
    invalidate()
    return bool(cancelled)


def finish_switch(*, force: bool = False) -> LockPolicy:
    """Wait until the old holders are gone, then put the target in force. Any process may do it."""
    row = _row()
    while row.state == LockPolicy.State.DRAINING:
        if force or drained(row):
            _flip(row, forced=force)
        elif _is_overdue(row):
            _cancel(changed_at=row.changed_at)
            raise LockTimeout(
                f"{row.backend!r} is still held by somebody who renews: the switch is cancelled. "
                "See who it is (manage.py locks), then try again, or force it."
            )
        else:
            time.sleep(DRAIN_POLL)
        row = _row()
    invalidate()
    return row


def finish_in_background() -> None:
    """`finish_switch` in a thread; should this process die, whoever meets the switch does it."""
    threading.Thread(target=_finish_quietly, name="finish-switch", daemon=True).start()


def _finish_quietly() -> None:
    try:
        finish_switch()
    except (LockError, DatabaseError) as error:
        logger.warning("the switch was not finished here: %s", error)
    finally:
        connections.close_all()  # this thread's own


def drained(row: LockPolicy) -> bool:
    """Whether nobody can hold a lock of the old backend under this policy any more.

    A holder that renews has a lease without end, so where holders can be listed only the empty
    list says so; elsewhere, and where the store is silent and thus renews nothing, time does.
    """
    age = timezone.now() - row.changed_at
    if age < timedelta(seconds=MAX_AGE):
        return False
    old = locks[row.backend]
    if old.capabilities.lists_holders:
        with suppress(LockUnavailable):
            return all(held.name.startswith(NOT_WAITED_FOR) for held in old.inspect())
    return age >= timedelta(seconds=MAX_AGE + old.ttl)


def ends_by(row: LockPolicy) -> datetime:
    """When the switch under way is over at the latest: finished, or cancelled."""
    return row.changed_at + timedelta(seconds=MAX_AGE + locks[row.backend].ttl + OVERDUE)


def _is_overdue(row: LockPolicy) -> bool:
    return timezone.now() > ends_by(row)


def _flip(row: LockPolicy, *, forced: bool) -> None:
    with transaction.atomic(durable=True):
        flipped = LockPolicy.objects.filter(
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
        if flipped:  # another process may have got there first
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


def finish_overdue_switch() -> None:
    """Complete a switch whose process died while it drained. Called by whoever meets it."""
    row = _row()
    if row.state == LockPolicy.State.DRAINING and _is_overdue(row):
        try:
            if drained(row):
                _flip(row, forced=False)
            else:
                _cancel(changed_at=row.changed_at)
        except (DatabaseError, RuntimeError) as error:  # RuntimeError: in a caller's transaction
            logger.warning("the switch was not finished here: %s", error)
        invalidate()
