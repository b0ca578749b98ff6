"""The line before a sale's lock: buyers of one process share a grant.

A grant costs two round trips and wakes a waiter, often on another machine: more than the purchase
itself. So one thread leads: it takes the lock, serves itself and those who came to the line
meanwhile, each in a transaction of its own, and gives the lock back after PURCHASES_PER_GRANT to
whoever is next anywhere. The next in line leads then.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from django.conf import settings

from locking import Lease, LockTimeout, locks, policy
from locking.guard import PolicyLock

T = TypeVar("T")


class _Place(Generic[T]):
    """One buyer in the line. `told` when he is served, or is to lead."""

    def __init__(self, work: Callable[[Lease], T]) -> None:
        self.work = work
        self.told = threading.Event()
        self.result: T | None = None
        self.error: BaseException | None = None
        self.is_served = False

    def serve(self, lease: Lease) -> None:
        try:
            self.result = self.work(lease)
        except BaseException as error:  # noqa: BLE001 - it is the buyer's, in his own thread
            self.error = error
        self.is_served = True

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


_lines: dict[str, deque[_Place[object]]] = {}
"""Who waits for a leader to serve him; a name is there while somebody leads."""
_guard = threading.Lock()


def serve(guard: PolicyLock, work: Callable[[Lease], T]) -> T:
    """What `work` returns under the lock, in this thread or in that of a leader.

    Raises what `work` and the lock raise; LockTimeout also when no leader came to it in time.
    """
    most, name = settings.PURCHASES_PER_GRANT, guard.name
    if most == 1 or locks[policy.current().backend].capabilities.exclusion != "machines":
        with guard as lease:
            return work(lease)
    assert guard.timeout is not None
    place, deadline = _Place(work), time.monotonic() + guard.timeout
    with _guard:
        follows = name in _lines
        _lines.setdefault(name, deque())
        if follows:
            _lines[name].append(place)  # type: ignore[arg-type]
    if follows:
        _wait(name, place, guard.timeout)
        if place.is_served:
            return place.outcome()
    try:
        guard.timeout = max(0.0, deadline - time.monotonic())
        with guard as lease:
            place.serve(lease)
            if place.error is None:
                _serve_others(name, lease, most - 1)
            return place.outcome()
    finally:
        _let_the_next_lead(name)


def _wait(name: str, place: _Place[T], timeout: float) -> None:
    if place.told.wait(timeout):
        return
    with _guard:
        line = _lines.get(name)
        if line is not None and place in line:
            line.remove(place)  # type: ignore[arg-type]
            raise LockTimeout(f"Nobody came to serve at {name!r} in {timeout:g} s.")
    place.told.wait()  # the leader is at it: a statement's own time limit is its end


def _serve_others(name: str, lease: Lease, most: int) -> None:
    for _ in range(most):
        with _guard:
            line = _lines[name]
            if not line or lease.lost:
                return
            place = line.popleft()
        place.serve(lease)
        place.told.set()
        if place.error is not None:
            return  # it may have been the connection


def _let_the_next_lead(name: str) -> None:
    with _guard:
        line = _lines[name]
        if line:
            line.popleft().told.set()
        else:
            del _lines[name]
