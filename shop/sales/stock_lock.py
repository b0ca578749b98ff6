"""The lock and the fence of a sale's stock, and the flag that its stock is returning."""

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from django.conf import settings
from django.core.cache import caches

from inventory import stock
from inventory.exceptions import OutcomeUnknown
from inventory.statements import Statement
from locking import Lease, LockError, lock, locks, policy
from locking.models import WriteStrategy
from locking.policy.lock import PolicyLock
from shop.models import Sale
from shop.platform.mysql.session import current_session, end_session

RETURNING = 15.0
"""Seconds for which the flag stands: longer than acquiring the lock and committing may take."""


def lock_name(sale_id: int) -> str:
    """Return the name of the lock that guards the stock of a sale."""
    return f"sale:{sale_id}"


def sale_lock(sale: Sale, *, began: float | None = None) -> PolicyLock:
    """Return the lock of a sale, which waits until LOCK_TIMEOUT seconds after `began` or now."""
    waited = 0.0 if began is None else time.monotonic() - began
    return lock(lock_name(sale.pk), timeout=max(0.0, settings.LOCK_TIMEOUT - waited))


def fence_of(lease: Lease) -> stock.Fence:
    """Return the fence with which the holder of a lease writes the stock row."""
    epoch, token = lease.fence
    return stock.Fence(epoch=epoch, token=token if lease.backend.capabilities.fencing else None)


def commit_under(lease: Lease, statements: Sequence[Statement]) -> list[int]:
    """Commit statements that write a stock row under its lock; see `stock.commit`.

    A naive write is refused by nothing, even if it reaches the database after the next holder has
    written. So if its outcome is unknown, the lock is kept until the database has ended the
    session: see `Lease.release_after`. The caller's release returns at once.
    """
    session = current_session() if lease.strategy == WriteStrategy.NAIVE else None
    try:
        return stock.commit(statements)
    except OutcomeUnknown:
        if session is not None:
            lease.release_after(partial(end_session, session))
        raise


def learn_newer_fence(sale: Sale) -> None:
    """Read the policy again and raise the lock's token floor, after the row refused a stale fence.

    The token floor matters to a lock store that restarted without its data and whose clock was set
    back: its tokens would stay below the row's.
    """
    policy.invalidate()
    newest = stock.count_stale_write(stock_id=sale.stock_id)
    with suppress(LockError):  # the next attempt meets the same error and reports it
        active = policy.current()
        if newest.token is not None and active.epoch == newest.epoch:
            locks[active.backend].raise_token_floor(lock_name(sale.pk), newest.token)


def mark_stock_returning(*, slug: str) -> None:
    """Set the flag that units of a sale are about to be returned; call it before returning them.

    Another process may still remember the sale as sold out. The flag keeps it from refusing, from
    memory, a customer who has bought one of the returned units and sends the same form again.
    """
    caches["flags"].set(f"returning:{slug}", 1, RETURNING)


def is_stock_returning(*, slug: str) -> bool:
    """Return True if the flag is set, False also while Redis is unavailable."""
    return caches["flags"].get(f"returning:{slug}") is not None
