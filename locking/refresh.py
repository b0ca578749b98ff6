"""Calls that the threads of one process share, and the clock for the age of what they read.

`locking.single_flight` does the same for several processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Generic, TypeVar

from locking.fork import after_fork_in_child

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Return seconds since the machine started.

    Unlike `time.monotonic`, it goes on while a virtual machine is suspended (where the system has
    CLOCK_BOOTTIME): what was read before is then as old as it is for all other machines.
    """
    return time.clock_gettime(_CLOCK)


class SharedCalls(Generic[K, V]):
    """Calls that threads share: the first one makes the call, the others wait for its outcome.

    An exception is raised in every thread that waits. If the calling thread is interrupted
    (SystemExit, KeyboardInterrupt), the future is cancelled and another thread makes the call.
    """

    def __init__(self) -> None:
        self._pending: dict[K, Future[V]] = {}
        # A forked child has none of the threads that would end the parent's calls.
        after_fork_in_child(self.clear)

    def __contains__(self, key: K) -> bool:
        return key in self._pending

    def call(self, key: K, function: Callable[[], V]) -> V:
        """Return the result of `function`, or of the call for `key` that is under way."""
        while True:
            future, is_mine = self.begin(key, function)
            if is_mine:
                return future.result()
            with suppress(CancelledError):
                return future.result()

    def begin(self, key: K, function: Callable[[], V]) -> tuple[Future[V], bool]:
        """Make the call unless one for `key` is under way; return it, and whether it was made here.

        The other one has not ended yet; this one has, with a result or an exception.
        """
        mine = Future[V]()
        try:
            while (found := self._pending.setdefault(key, mine)).done():
                self._drop(key, found)  # its thread has not done so yet, or was interrupted
            if found is not mine:
                return found, False
            mine.set_result(function())
        except Exception as error:  # noqa: BLE001 - raised in every thread that waits
            mine.set_exception(error)
        finally:  # an interrupt may come between any two lines
            mine.cancel()
            self._drop(key, mine)
        return mine, True

    def _drop(self, key: K, future: Future[V]) -> None:
        pending = self._pending
        # False after clear(). Without a lock, which an interrupt could leave held: at worst the
        # call that took the place meanwhile is made twice.
        if pending.get(key) is future:
            pending.pop(key, None)

    def clear(self) -> None:
        """Make the next caller start a call of its own, even if one is under way."""
        self._pending = {}
