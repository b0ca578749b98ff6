"""The switch to another backend or mode, which any process can take a step further.

`_advance` decides in each step which locks of the old backend are free: those that it no longer
lists or, if it cannot list them, all of them after its ttl. The policy row names the others, and
each process reads it before it asks the new backend for a lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import connections, transaction
from django.db.models import F
from django.db.models.functions import Greatest
from django.utils import timezone

from locking.conf import modes
from locking.exceptions import LockError, LockMisuse, LockTimeout, LockUnavailable, unknown
from locking.handler import locks
from locking.models import LockPolicy, LockPolicyChange
from locking.names import RESERVED
from locking.policy import active
from locking.policy.active import (
    Policy,
    current,
    database_alias,
    database_errors,
    first_seen,
    invalidate,
    policy_rows,
    stored_policy,
)
from locking.refresh import clock

logger = logging.getLogger("locking")

DRAIN_POLL = 0.02
"""Seconds between two steps of a switch, at least."""
SWITCH_GRACE = 5.0
"""Seconds after the longest lease at which `finish_switch` gives up."""
HELP_AFTER = 1.0
"""Seconds by which a switch is late if the process that began it has probably died. Any other
process then takes its next step, at most once in this time."""


def switch(
    *,
    backend: str,
    mode: str = "",
    changed_by: str = "",
    reason: str = "",
    force: bool = False,
    beyond: int = 0,
    wait: bool = True,
) -> LockPolicy:
    """Activate another backend, or another mode than the active one, and return the policy row.

    Blocks until no lock is held in the old backend: at least MAX_AGE, and at most MAX_AGE plus the
    old backend's ttl plus SWITCH_GRACE. Without `wait`, only begin; `finish_switch` must follow.
    With `force`, do not wait for holders, which is meant for an old backend that is unavailable.
    The new epoch will exceed `beyond`; a policy restored from a dump does not know later epochs.

    Raise LockUnavailable if a backend does not reply, and LockMisuse if an argument is wrong or
    another switch is in progress; nothing is changed then. LockUnavailable of the database leaves
    open whether the switch has begun: other processes then finish it. For the errors of the wait
    see `finish_switch`.
    """
    if backend not in locks:
        raise LockMisuse(unknown("lock backend", backend, locks))
    row = stored_policy()
    if row.state == LockPolicy.State.DRAINING and not force:
        _advance(row)  # its process may have died before the last step
        row = stored_policy()
    known = modes().values
    mode = mode or (row.mode if known else "")
    if mode not in (known or [""]):
        raise LockMisuse(unknown("mode", mode, known))
    locks[backend].probe()
    startable = policy_rows().filter(pk=1)
    if not force:
        _names_held(row.backend)
        startable = startable.filter(state=LockPolicy.State.STEADY, backend=row.backend)
    with _writing():
        started = startable.update(
            state=LockPolicy.State.DRAINING,
            epoch=Greatest(F("epoch"), beyond),
            next_backend=backend,
            next_mode=mode,
            still_held=None,
            changed_by=changed_by[:150],
            reason=reason[:200],
            changed_at=timezone.now(),
        )
    if not started:
        problem = "Another switch is in progress: wait for it, cancel it, or force this one."
        raise LockMisuse(problem)
    invalidate()
    return finish_switch(force=force) if wait else stored_policy()


def raise_epoch(epoch: int, *, reason: str) -> bool:
    """Increase the epoch if it is still `epoch`: its backend grants lower tokens than before.

    Holders of the earlier epoch are refused by every fence of the new one. Raise LockUnavailable if
    the database does not reply.
    """
    with _writing(durable=False):
        row = stored_policy()
        steady = policy_rows().filter(pk=1, epoch=epoch, state=LockPolicy.State.STEADY)
        is_raised = bool(steady.update(epoch=epoch + 1))
        if is_raised:
            row.next_backend, row.next_mode = row.backend, row.mode
            row.changed_by, row.reason, row.changed_at = "", reason, timezone.now()
            _record(row, epoch=epoch + 1, forced=True)
            logger.error("Lock epoch raised to %d: %s in %r", epoch + 1, reason, row.backend)
    invalidate()
    return is_raised


def cancel_switch() -> bool:
    """Go back to the old backend; return False if no switch was in progress.

    If names have been handed over already, this begins a switch back, which the process that began
    the switch finishes, or any other one. Raise LockUnavailable if the database does not reply.
    """
    while (row := stored_policy()).state == LockPolicy.State.DRAINING:
        if _cancel(row):
            invalidate()
            return True
    return False


def _cancel(row: LockPolicy) -> bool:
    with _writing(durable=row.still_held is not None):
        if row.still_held is None:  # nothing was granted by the next backend
            return _update(row, state=LockPolicy.State.STEADY, next_backend="", next_mode="")
        is_mine = _update(
            row,
            backend=row.next_backend,
            mode=row.next_mode,
            next_backend=row.backend,
            next_mode=row.mode,
            still_held=None,
            changed_at=timezone.now(),
        )
        if is_mine:
            _record(row, epoch=row.epoch, forced=False)
    return is_mine


def finish_switch(*, force: bool = False) -> LockPolicy:
    """Wait until no lock is held in the old backend, and return the policy row.

    Any process may do this, not only the one that began the switch. Raise LockTimeout if a lock is
    still held long after the others: it goes on waiting, and every other name uses the new backend.
    Raise LockUnavailable if the old backend cannot list its holders; before the hand-over, the
    switch is then cancelled. Raise it also if the database does not reply.
    """
    started, problem = clock(), ""
    row = stored_policy()
    while row.state == LockPolicy.State.DRAINING:
        step_at = clock()
        try:
            _advance(row, force=force)
            problem = ""
        except LockUnavailable as error:
            problem = str(error)
        took = clock() - step_at
        row = stored_policy()
        if row.state != LockPolicy.State.DRAINING:
            break
        if clock() - started > active.MAX_AGE + locks[row.backend].ttl + SWITCH_GRACE:
            raise _gave_up(row, problem)
        time.sleep(max(DRAIN_POLL, 5 * took))  # listing the holders may cost the store much
    invalidate()
    return row


def _gave_up(row: LockPolicy, problem: str) -> LockError:
    if row.still_held is None and _cancel(row):
        invalidate()
        return LockUnavailable(f"Switch cancelled. {problem}")
    held = row.still_held or ()
    names = ", ".join(map(repr, held[:3])) + ", ..." * (len(held) > 3)
    if problem:
        return LockUnavailable(f"Switch not finished; {names} must wait. {problem}")
    return LockTimeout(
        f"Switch not finished: {names} is still held in {row.backend!r} and being renewed. All "
        f"other names use {row.next_backend!r}. Find the holder with 'manage.py locks --backend "
        f"{row.backend}'; the switch ends when it releases, or cancel or force the switch."
    )


def finish_overdue_switch(seen: Policy | None = None) -> None:
    """Take the next step of a switch whose process has probably died, in a thread.

    For all that see a switch, as often as they like; `seen` is the policy as the caller read it.
    """
    global _help_at
    seen, now = seen or current(), clock()
    late = active.MAX_AGE + HELP_AFTER
    if seen.draining and now - seen.unchanged_since > late and now >= _help_at:
        _help_at = now + HELP_AFTER
        _in_background(lambda: _advance(stored_policy()))


_help_at = 0.0
"""Time from which this process may take the next step of another process's switch."""


def finish_in_background() -> None:
    """Run `finish_switch` in a thread. If this process dies, another one finishes the switch."""
    _in_background(finish_switch)


def _in_background(step: Callable[[], object]) -> None:
    def run() -> None:
        try:
            step()
        except LockError as error:
            logger.warning("Switch not finished by this process: %s", error)
        finally:
            connections.close_all()  # only the connections of this thread

    threading.Thread(target=run, name="finish-switch", daemon=True).start()


def _advance(row: LockPolicy, *, force: bool = False) -> None:
    """Take the next step of the switch of `row`, if it is time.

    Raise LockUnavailable if the old backend or the database does not reply.
    """
    known = row.still_held
    if force:
        _activate(row, forced=True)
    elif known is not None or clock() - first_seen(row) >= _announcement(row):
        held = _names_held(row.backend)
        if known is not None:
            held = held.intersection(known)
        if not held:
            _activate(row)
        elif known is None or len(held) < len(known):
            with _writing():
                _update(row, still_held=sorted(held), epoch=row.epoch + (known is None))
            invalidate()


def _announcement(row: LockPolicy) -> float:
    """Return the seconds until the old backend grants nothing, and no unlisted lock is held there.

    `none` keeps no caller out, so a switch does not wait for those that work under it.
    """
    old = locks[row.backend]
    is_blind = old.capabilities.expires and not old.capabilities.lists_holders
    return active.MAX_AGE + (old.ttl if is_blind else 0.0)


def _names_held(alias: str) -> set[str]:
    """Return the names held in a backend, without those that no policy decides about.

    A backend that cannot list them returns none: its holders have a ttl to finish. Raise
    LockUnavailable if that is not enough, or if the store does not reply.
    """
    backend = locks[alias]
    declared = backend.capabilities
    needs_force = "Only a forced switch does not wait for them."
    if not declared.lists_holders:
        if declared.exclusion != "none" and not declared.expires:
            why = "cannot list the holders in other processes, and their locks do not expire"
            raise LockUnavailable(f"{alias!r} {why}. {needs_force}")
        return set()
    try:
        return {held.name for held in backend.inspect() if not held.name.startswith(RESERVED)}
    except LockUnavailable as error:
        raise LockUnavailable(
            f"The holders in {alias!r} are unknown: {error} {needs_force}"
        ) from error


@contextmanager
def _writing(*, durable: bool = True) -> Iterator[None]:
    """Open a transaction on the policy; raise LockUnavailable if the database does not reply.

    Durable: raise LockMisuse in a caller's transaction.
    """
    alias = database_alias()
    blocks = transaction.get_connection(alias).atomic_blocks
    if durable and blocks and not getattr(blocks[-1], "_from_testcase", False):
        raise LockMisuse(
            "The policy cannot be switched inside a transaction, perhaps that of ATOMIC_REQUESTS: "
            "no other process would see the switch before the COMMIT."
        )
    with database_errors("changed"), transaction.atomic(using=alias):
        yield


def _update(row: LockPolicy, **values: Any) -> bool:
    """Change the switch of `row`; return False if it is no longer in this state."""
    same = policy_rows().filter(
        pk=1,
        state=LockPolicy.State.DRAINING,
        epoch=row.epoch,
        changed_at=row.changed_at,
        still_held__isnull=row.still_held is None,
    )
    return bool(same.update(**values))


def _activate(row: LockPolicy, *, forced: bool = False) -> None:
    epoch = row.epoch + (forced or row.still_held is None)
    with _writing():
        if _update(
            row,
            backend=row.next_backend,
            mode=row.next_mode,
            epoch=epoch,
            state=LockPolicy.State.STEADY,
            next_backend="",
            next_mode="",
            still_held=None,
            changed_at=timezone.now(),
        ):  # else another process was first
            _record(row, epoch=epoch, forced=forced)
    invalidate()


def _record(row: LockPolicy, *, epoch: int, forced: bool) -> None:
    waited = max(timedelta(), timezone.now() - row.changed_at)
    LockPolicyChange.objects.using(database_alias()).create(
        epoch=epoch,
        from_backend=row.backend,
        from_mode=row.mode,
        to_backend=row.next_backend,
        to_mode=row.next_mode,
        changed_by=row.changed_by,
        reason=row.reason,
        forced=forced,
        drained_ms=min(waited // timedelta(milliseconds=1), 2**31 - 1),
    )
