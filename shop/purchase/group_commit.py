"""Group commit: waiting purchases of one process share a grant of the lock and a transaction.

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
from typing import Generic, TypeVar

from django.conf import settings

from locking import Lease, LockTimeout, locks, policy
from locking.policy.lock import PolicyLock

logger = logging.getLogger("shop")
T = TypeVar("T")


class _Waiter(Generic[T]):
    """A thread and its item. `woken` is set once the item is done or the thread is to lead."""

    def __init__(self, item: T) -> None:
        self.item = item
        self.woken = threading.Event()
        self.error: BaseException | None = None
        self.is_done = False

    def finish(self, error: BaseException | None = None) -> None:
        self.error = error
        self.is_done = True
        self.woken.set()

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error


_queues: dict[str, deque[_Waiter[object]]] = {}
"""The waiters behind the leader of each lock name; a name is present while a thread leads."""
_guard = threading.Lock()


def submit(lock: PolicyLock, item: T, write: Callable[[Sequence[T], Lease], object]) -> None:
    """Have an item written under the lock, by this thread or by a leader.

    `write` writes all items that it receives or, if it raises, none; it then receives them one by
    one. Raises the error of `write` for this item alone, and the errors of the lock; LockTimeout
    also if no leader takes the item in time.
    """
    assert lock.timeout is not None
    waiter, deadline = _Waiter(item), time.monotonic() + lock.timeout
    most, name = settings.PURCHASES_PER_GRANT, lock.name
    if most == 1 or locks[policy.current().backend].capabilities.exclusion != "machines":
        with lock as lease:
            write([item], lease)
        return
    with _guard:
        has_leader = name in _queues
        _queues.setdefault(name, deque())
        if has_leader:
            _queues[name].append(waiter)  # type: ignore[arg-type]
    if has_leader:
        _wait(lock, waiter, lock.timeout)
        if waiter.is_done:
            waiter.raise_error()
            return
    try:
        lock.timeout = max(0.0, deadline - time.monotonic())
        with lock as lease:
            _lead(name, lease, waiter, write, most)
            waiter.raise_error()
    finally:
        _promote_next(name)


def _wait(lock: PolicyLock, waiter: _Waiter[T], timeout: float) -> None:
    if waiter.woken.wait(timeout):
        return
    with _guard:
        queue = _queues.get(lock.name)
        if queue is not None and waiter in queue:
            queue.remove(waiter)  # type: ignore[arg-type]
            raise LockTimeout(f"No leader took the item for {lock.name!r} in {timeout:g} s.")
    # A leader is writing the item: the time limit of its statements ends this wait.
    waiter.woken.wait()


def _lead(
    name: str,
    lease: Lease,
    leader: _Waiter[T],
    write: Callable[[Sequence[T], Lease], object],
    most: int,
) -> None:
    """Write the leader's item together with those of the next waiters, until an error."""
    with _guard:
        queue = _queues[name]
        others = [queue.popleft() for _ in range(min(most - 1, len(queue)))]
    left: deque[_Waiter[T]] = deque([leader, *others])  # type: ignore[list-item]
    try:
        if others and _write_together(lease, left, write):
            while left:
                left.popleft().finish()
        while left and (left[0] is leader or not lease.lost):
            waiter = left.popleft()
            try:
                write([waiter.item], lease)
            except Exception as error:  # noqa: BLE001 - raised in the thread that submitted it
                waiter.finish(error)
                return  # the connection may have failed
            waiter.finish()
    finally:
        with _guard:
            _queues[name].extendleft(each for each in reversed(left) if each is not leader)  # type: ignore[misc]


def _write_together(
    lease: Lease, waiters: Sequence[_Waiter[T]], write: Callable[[Sequence[T], Lease], object]
) -> bool:
    try:
        write([waiter.item for waiter in waiters], lease)
    except Exception as error:  # noqa: BLE001 - writing one by one finds the item that caused it
        logger.info(
            "Group of %d purchases failed; writing them one by one: %r", len(waiters), error
        )
        return False
    return True


def _promote_next(name: str) -> None:
    with _guard:
        queue = _queues[name]
        if queue:
            queue.popleft().woken.set()
        else:
            del _queues[name]
