"""Group commit: waiting threads of one process share a grant of the lock and a transaction.

A grant costs two round trips and wakes a waiter, often on another machine, and a commit is flushed
to disk: both cost more than the purchase itself. So one thread leads: it acquires the lock, writes
the purchases of up to PURCHASES_PER_GRANT threads that came meanwhile, and releases the lock, which
may then go to another process. The next waiting thread is promoted to leader.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.db import IntegrityError

from inventory.exceptions import OutOfStock
from inventory.stock import Withdrawal
from locking import Lease, LockError, LockTimeout, locks, policy
from locking.policy.lock import PolicyLock
from shop.errors import LimitReached
from shop.models import Sale
from shop.platform.deadline import current_deadline
from shop.sales.purchase_request import record_lock
from shop.sales.stock_lock import sale_lock, use_of, withdraw

logger = logging.getLogger("shop")

REFUSED = (IntegrityError, LimitReached, OutOfStock)
"""Errors of one purchase: the database has replied, and the grant serves the next one."""


class _Waiter:
    """A thread and its purchase. `woken` is set once it is written or the thread is to lead."""

    def __init__(self, withdrawal: Withdrawal, stock_id: int) -> None:
        self.withdrawal, self.stock_id = withdrawal, stock_id
        self.woken, self.asked_at = threading.Event(), time.monotonic()
        self.order_id: int | None = None
        self.lock: dict[str, Any] = {}
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self.order_id is not None or self.error is not None

    def finish(self, *, order_id: int | None = None, error: BaseException | None = None) -> None:
        self.order_id, self.error = order_id, error
        self.woken.set()

    def result(self) -> tuple[int, dict[str, Any]]:
        if self.error is not None:
            raise self.error
        assert self.order_id is not None
        return self.order_id, self.lock


_queues: dict[str, deque[_Waiter]] = {}
"""The waiters behind the leader of each lock name; a name is present while a thread leads."""
_guard = threading.Lock()


def submit(withdrawal: Withdrawal, *, sale: Sale) -> tuple[int, dict[str, Any]]:
    """Have a purchase written under the sale's lock, by this thread or by a leader.

    Return the id of its order, and the grant that it names. Purchases that cannot be written
    together are written one by one. Raises the error of `withdraw` for this purchase alone, and the
    errors of the lock before the write; LockTimeout also if no leader takes it in time.
    """
    lock, mine = sale_lock(sale), _Waiter(withdrawal, sale.stock_id)
    assert lock.timeout is not None
    deadline = time.monotonic() + lock.timeout
    most, name = settings.PURCHASES_PER_GRANT, lock.name
    if most == 1 or locks[policy.current().backend].capabilities.exclusion != "machines":
        return _lead(lock, mine, 1)
    with _guard:
        has_leader = name in _queues
        queue = _queues.setdefault(name, deque())
        if has_leader:
            queue.append(mine)
    if has_leader and _wait(name, mine, lock.timeout):
        return mine.result()
    try:
        lock.timeout = max(0.0, deadline - time.monotonic())
        return _lead(lock, mine, most)
    finally:
        _promote_next(name)


def _wait(name: str, mine: _Waiter, timeout: float) -> bool:
    """Return True once the purchase is done, False if this thread is to lead."""
    if not mine.woken.wait(timeout):
        with _guard:
            queue = _queues.get(name)
            if queue is not None and mine in queue:
                queue.remove(mine)
                raise LockTimeout(f"No leader took the purchase for {name!r} in {timeout:g} s.")
        # A leader is writing the purchase: the time limit of its statements ends this wait.
        mine.woken.wait()
    return mine.is_done


def _lead(lock: PolicyLock, mine: _Waiter, most: int) -> tuple[int, dict[str, Any]]:
    """Write this thread's purchase and those of up to `most` - 1 waiters under one grant."""
    try:
        with lock as lease:
            with _guard:
                queue = _queues.get(lock.name, deque())
                group = [mine, *(queue.popleft() for _ in range(min(most - 1, len(queue))))]
            try:
                _write_group(lease, group)
            finally:
                with _guard:
                    queue.extendleft(one for one in group[:0:-1] if not one.is_done)
            return mine.result()
    except LockError as error:
        if mine.order_id is None:
            raise
        logger.warning("%s is committed, but its lock was lost: %s", mine.withdrawal.orders, error)
        return mine.result()


def _write_group(lease: Lease, group: Sequence[_Waiter]) -> None:
    """Write the purchases together or, if that fails, one by one until the connection may fail."""
    if len(group) > 1:
        try:
            _write(lease, group)
        except Exception as error:  # noqa: BLE001 - writing one by one finds what caused it
            # Normal when the last units are sold: only the purchases that fail alone are refused.
            logger.debug("%d purchases failed, writing them one by one: %r", len(group), error)
        else:
            return
    for one in group:
        if one is not group[0] and (lease.lost or current_deadline().is_over):
            return
        try:
            _write(lease, [one])
        except Exception as error:  # noqa: BLE001 - raised in the thread that submitted it
            one.finish(error=error)
            if not isinstance(error, REFUSED):
                return  # the connection may have failed


def _write(lease: Lease, group: Sequence[_Waiter]) -> None:
    for one in group:
        one.lock = use_of(lease, asked_at=one.asked_at)
        record_lock(one.withdrawal, one.lock)
    ids = withdraw(lease, [one.withdrawal for one in group], stock_id=group[0].stock_id)
    for one, order_id in zip(group, ids, strict=True):
        one.finish(order_id=order_id)


def _promote_next(name: str) -> None:
    with _guard:
        queue = _queues[name]
        if queue:
            queue.popleft().woken.set()
        else:
            del _queues[name]
