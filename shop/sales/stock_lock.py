"""The lock and the fence of a sale's stock."""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from django.conf import settings

from inventory import stock
from inventory.exceptions import StaleFence
from inventory.statements import Statement
from locking import Lease, LockError, lock, locks, policy
from locking.policy.lock import PolicyLock
from shop.errors import Overloaded, ServiceUnavailable, refusing_lock_errors
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
        locks[active.backend].raise_token_floor(lock_name(sale.pk), newest.token)
        with sale_lock(sale) as lease:
            fence, is_new = fence_of(lease), lease.count == 1
        if is_new and fence.epoch == newest.epoch and (fence.token or math.inf) <= newest.token:
            policy.raise_epoch(newest.epoch, reason="tokens went back")


@refusing_lock_errors()
def return_stock(
    sale: Sale,
    statements: Callable[[stock.Fence], Sequence[Statement]],
    *,
    then: Callable[[], object],
) -> None:
    """Commit statements that add units to a sale; call `then` before its lock is released.

    The lock is held because a naive purchase would overwrite units that are added between its read
    and its write. Raises the errors of the statements, and Overloaded or ServiceUnavailable if
    nothing was decided.
    """
    is_done = False
    for _ in range(settings.MAX_ATTEMPTS):
        try:
            with sale_lock(sale) as lease:
                stock.commit(statements(fence_of(lease)))
                is_done = True
                then()
        except StaleFence:
            learn_newer_fence(sale)
            continue
        except LockError as error:
            if not is_done:
                raise
            logger.warning("Stock of sale %s is written; its lock was lost: %s", sale.slug, error)
        return
    raise Overloaded
