"""Group commit: waiting threads of one process share a grant of the lock and a transaction.

A grant costs two round trips and wakes a waiter, often on another machine, and a commit is flushed
to disk: both cost more than the purchase itself. So one thread leads: it acquires the lock, writes
the items of up to PURCHASES_PER_GRANT threads that came meanwhile, and releases the lock, which may
then go to another process. The next waiting thread is promoted to leader.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from django.conf import settings

from locking import Lease, LockError, LockTimeout, locks, policy
from locking.policy.lock import PolicyLock

logger = logging.getLogger("shop")
T = TypeVar("T")
R = TypeVar("R")
Write = Callable[[Lease, Sequence[T]], Sequence[R]]
"""Writes all items and returns a result for each or, if it raises, writes none."""


class _Waiter(Generic[T, R]):
    """A thread and its item. `woken` is set once the item is done or the thread is to lead."""

    def __init__(self, item: T) -> None:
        self.item = item
        self.woken = threading.Event()
        self.results: list[R] = []
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return bool(self.results or self.error)

    def finish(self, *results: R, error: BaseException | None = None) -> None:
        self.results, self.error = list(results), error
        self.woken.set()

    def result(self) -> R:
        if self.error is not None:
            raise self.error
        return self.results[0]


_queues: dict[str, deque[_Waiter[Any, Any]]] = {}
"""The waiters behind the leader of each lock name; a name is present while a thread leads."""
_guard = threading.Lock()


def submit(lock: PolicyLock, item: T, write: Write[T, R]) -> R:
    """Have an item written under the lock, by this thread or by a leader; return its result.

    Items that cannot be written together are written one by one. Raises the error of `write` for
    this item alone, and the errors of the lock before the write; LockTimeout also if no leader
    takes the item in time.
    """
    assert lock.timeout is not None
    mine, deadline = _Waiter[T, R](item), time.monotonic() + lock.timeout
    most, name = settings.PURCHASES_PER_GRANT, lock.name
    if most == 1 or locks[policy.current().backend].capabilities.exclusion != "machines":
        return _lead(lock, mine, write, 1)
    with _guard:
        has_leader = name in _queues
        queue = _queues.setdefault(name, deque())
        if has_leader:
            queue.append(mine)
    if has_leader and _wait(name, mine, lock.timeout):
        return mine.result()
    try:
        lock.timeout = max(0.0, deadline - time.monotonic())
        return _lead(lock, mine, write, most)
    finally:
        _promote_next(name)


def _wait(name: str, mine: _Waiter[T, R], timeout: float) -> bool:
    """Return True once the item is done, False if this thread is to lead."""
    if not mine.woken.wait(timeout):
        with _guard:
            queue = _queues.get(name)
            if queue is not None and mine in queue:
                queue.remove(mine)
                raise LockTimeout(f"No leader took the item for {name!r} in {timeout:g} s.")
        # A leader is writing the item: the time limit of its statements ends this wait.
        mine.woken.wait()
    return mine.is_done


def _lead(lock: PolicyLock, mine: _Waiter[T, R], write: Write[T, R], most: int) -> R:
    """Write this thread's item and those of up to `most` - 1 waiters under one grant."""
    try:
        with lock as lease:
            with _guard:
                queue = _queues.get(lock.name, deque())
                group = [mine, *(queue.popleft() for _ in range(min(most - 1, len(queue))))]
            try:
                _write_group(lease, group, write)
            finally:
                with _guard:
                    queue.extendleft(one for one in group[:0:-1] if not one.is_done)
            return mine.result()
    except LockError as error:
        if not mine.results:
            raise
        logger.warning("%s is committed, but its lock was lost: %s", mine.item, error)
        return mine.result()


def _write_group(lease: Lease, group: Sequence[_Waiter[T, R]], write: Write[T, R]) -> None:
    """Write the items together or, if that fails, one by one until an error."""
    if len(group) > 1:
        try:
            results = write(lease, [one.item for one in group])
        except Exception as error:  # noqa: BLE001 - writing one by one finds the item that caused it
            # Normal when the last units are sold: only the items that fail alone are refused.
            logger.debug("%d items failed, writing them one by one: %r", len(group), error)
        else:
            for one, result in zip(group, results, strict=True):
                one.finish(result)
            return
    for one in group:
        if one is not group[0] and lease.lost:
            return
        try:
            [result] = write(lease, [one.item])
        except Exception as error:  # noqa: BLE001 - raised in the thread that submitted it
            one.finish(error=error)
            return  # the connection may have failed
        one.finish(result)


def _promote_next(name: str) -> None:
    with _guard:
        queue = _queues[name]
        if queue:
            queue.popleft().woken.set()
        else:
            del _queues[name]
