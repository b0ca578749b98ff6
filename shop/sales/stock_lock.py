"""The lock and the fence of a sale's stock."""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from django.conf import settings

from inventory import stock
from locking import Lease, LockError, lock, locks, policy
from locking.policy.lock import PolicyLock
from shop.errors import ServiceUnavailable, refusing_lock_errors
from shop.models import Sale
from shop.platform.deadline import current_deadline

logger = logging.getLogger("shop")


def lock_name(sale_id: int) -> str:
    """Return the name of the lock that guards the stock of a sale."""
    return f"sale:{sale_id}"


def sale_lock(sale: Sale) -> PolicyLock:
    """Return the lock of a sale, which waits until LOCK_TIMEOUT after the request arrived."""
    return lock(lock_name(sale.pk), timeout=current_deadline().left(settings.LOCK_TIMEOUT))


def fence_of(lease: Lease) -> stock.Fence:
    """Return the fence with which the holder of a lease writes the stock row."""
    epoch, token = lease.fence
    return stock.Fence(epoch=epoch, token=token if lease.backend.capabilities.fencing else None)


def use_of(lease: Lease, *, asked_at: float | None = None) -> dict[str, Any]:
    """Return what an order that is written now says of its grant; `asked_at` is monotonic.

    The token is None if it fences nothing, the wait if no purchase has asked for the lock.
    """
    granted_at = lease.granted_at
    waited = None if asked_at is None else max(0.0, round(1000 * (granted_at - asked_at), 3))
    held = round(1000 * (time.monotonic() - granted_at), 3)
    grant = {"backend": lease.backend.alias, "token": fence_of(lease).token}
    return {**grant, "waited_ms": waited, "held_ms": held}


def withdraw(
    lease: Lease, withdrawals: Sequence[stock.Withdrawal], *, stock_id: int
) -> Sequence[int]:
    """Withdraw units under the lock of a sale, as `stock.withdraw` does.

    Raise ServiceUnavailable if the current request is past its hard deadline.
    """
    if current_deadline().is_over:
        raise ServiceUnavailable
    return stock.withdraw(
        withdrawals, stock_id=stock_id, strategy=lease.mode, fence=fence_of(lease)
    )


def learn_newer_fence(sale: Sale) -> None:
    """Make sure that the next grant is newer than the fence that has refused a write.

    Usually the writer was late, and the policy is read again. But a lock store that restarted
    without its data, or was replaced, may grant lower tokens than the row's: its token floor is
    raised. If the next grant is still no newer, the epoch of the policy is.
    """
    policy.invalidate()
    newest = stock.count_stale_write(stock_id=sale.stock_id)
    with suppress(LockError):  # the next attempt meets the same error and reports it
        active = policy.current()
        if newest.token is None or active.epoch != newest.epoch:
            return
        locks[active.backend].backend.raise_token_floor(lock_name(sale.pk), newest.token)
        with sale_lock(sale) as lease:
            fence, is_new = fence_of(lease), lease.count == 1
        if is_new and fence.epoch == newest.epoch and (fence.token or math.inf) <= newest.token:
            policy.raise_epoch(newest.epoch, reason="tokens went back")


@contextmanager
def returning_stock(sale: Sale) -> Iterator[Lease]:
    """Hold the lock of a sale while the block commits a change of its stock.

    Without the lock, a naive purchase would overwrite units that are added between its read and its
    write. Raise Overloaded or ServiceUnavailable if the lock is not obtained. A lock that is lost
    after the block is only logged: the stock is written.
    """
    is_done = False
    with refusing_lock_errors():
        try:
            with sale_lock(sale) as lease:
                yield lease
                is_done = True
        except LockError as error:
            if not is_done:
                raise
            logger.warning("Stock of sale %s is written; its lock was lost: %s", sale.slug, error)
