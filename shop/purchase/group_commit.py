"""The line before a sale's lock: buyers of one process share a grant, and a transaction.

A grant costs two round trips and wakes a waiter, often on another machine, and a commit is flushed
to the disk: more than the purchase itself. So one thread leads: it takes the lock, writes what all
want who came to the line meanwhile, up to PURCHASES_PER_GRANT, and gives the lock back to whoever
is next anywhere. The next in line leads then.
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


class _Place(Generic[T]):
    """One buyer in the line. `told` when he is served, or is to lead."""

    def __init__(self, item: T) -> None:
        self.item = item
        self.told = threading.Event()
        self.error: BaseException | None = None
        self.is_served = False

    def serve(self, error: BaseException | None = None) -> None:
        self.error = error
        self.is_served = True
        self.told.set()

    def leave(self) -> None:
        if self.error is not None:
            raise self.error


_lines: dict[str, deque[_Place[object]]] = {}
"""Who waits for a leader to serve him; a name is there while somebody leads."""
_guard = threading.Lock()


def serve(guard: PolicyLock, item: T, write: Callable[[Sequence[T], Lease], object]) -> None:
    """Have the item written under the lock, by this thread or by that of a leader.

    `write` writes all that it is given or, when it raises, none; it is then asked for them one by
    one. Raises what `write` raises for this item alone and what the lock raises; LockTimeout also
    when no leader came to it in time.
    """
    assert guard.timeout is not None
    place, deadline = _Place(item), time.monotonic() + guard.timeout
    most, name = settings.PURCHASES_PER_GRANT, guard.name
    if most == 1 or locks[policy.current().backend].capabilities.exclusion != "machines":
        with guard as lease:
            write([item], lease)
        return
    with _guard:
        follows = name in _lines
        _lines.setdefault(name, deque())
        if follows:
            _lines[name].append(place)  # type: ignore[arg-type]
    if follows:
        _wait(guard, place, guard.timeout)
        if place.is_served:
            place.leave()
            return
    try:
        guard.timeout = max(0.0, deadline - time.monotonic())
        with guard as lease:
            _lead(name, lease, place, write, most)
            place.leave()
    finally:
        _let_the_next_lead(name)


def _wait(guard: PolicyLock, place: _Place[T], timeout: float) -> None:
    if place.told.wait(timeout):
        return
    with _guard:
        line = _lines.get(guard.name)
        if line is not None and place in line:
            line.remove(place)  # type: ignore[arg-type]
            raise LockTimeout(f"Nobody came to serve at {guard.name!r} in {timeout:g} s.")
    # The leader is at it: a statement's own time limit is its end.
    place.told.wait()


def _lead(
    name: str,
    lease: Lease,
    place: _Place[T],
    write: Callable[[Sequence[T], Lease], object],
    most: int,
) -> None:
    """Serve the leader and, together with him, who stands behind him; until an error."""
    with _guard:
        line = _lines[name]
        others = [line.popleft() for _ in range(min(most - 1, len(line)))]
    left: deque[_Place[T]] = deque([place, *others])  # type: ignore[list-item]
    try:
        if others and _write_together(lease, left, write):
            while left:
                left.popleft().serve()
        while left and (left[0] is place or not lease.lost):
            served = left.popleft()
            try:
                write([served.item], lease)
            except Exception as error:  # noqa: BLE001 - it is the buyer's, in his own thread
                served.serve(error)
                return  # it may have been the connection
            served.serve()
    finally:
        with _guard:
            _lines[name].extendleft(each for each in reversed(left) if each is not place)  # type: ignore[misc]


def _write_together(
    lease: Lease, places: Sequence[_Place[T]], write: Callable[[Sequence[T], Lease], object]
) -> bool:
    try:
        write([place.item for place in places], lease)
    except Exception as error:  # noqa: BLE001 - whose it is, each alone will tell
        logger.info("%d purchases are written one by one: %r", len(places), error)
        return False
    return True


def _let_the_next_lead(name: str) -> None:
    with _guard:
        line = _lines[name]
        if line:
            line.popleft().told.set()
        else:
            del _lines[name]
