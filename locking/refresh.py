"""Values in the memory of one process, read once for all of its threads.

A cache of this module bounds the age of a value and the number of reads for any number of threads.
`locking.single_flight` does the same for several processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
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
            future, is_mine = self.join(key)
            if is_mine:
                return self.run(key, future, function)
            with suppress(CancelledError):
                return future.result()

    def join(self, key: K) -> tuple[Future[V], bool]:
        """Return the call for `key`, and whether it is a new one, which the caller must `run`."""
        mine = Future[V]()
        future = self._pending.setdefault(key, mine)
        return future, future is mine

    def run(self, key: K, mine: Future[V], function: Callable[[], V]) -> V:
        """Make the call that `join` returned as new."""
        try:
            result = function()
            mine.set_result(result)
            return result
        except Exception as error:
            mine.set_exception(error)
            raise
        finally:
            pending = self._pending
            if pending.get(key) is mine:  # false after clear()
                del pending[key]
            mine.cancel()

    def clear(self) -> None:
        """Make the next caller start a call of its own, even if one is under way."""
        self._pending = {}


class RefreshingCache(Generic[K, V]):
    """Values that one thread at a time refreshes while the others use the previous ones."""

    def __init__(self, max_entries: int = 1000) -> None:
        self.max_entries = max_entries
        """The cache is emptied when it would exceed this number."""
        self._entries: dict[K, tuple[float, V]] = {}
        self._reads: SharedCalls[K, V] = SharedCalls()

    def get(self, key: K, read: Callable[[], V], *, fresh: float, max_age: float) -> V:
        """Return the value of `key` if its read began at most `max_age` seconds ago, else read it.

        After `fresh` seconds one thread reads the value again; until `max_age` the others get the
        previous one. Without a value that is young enough they wait for the read and get its
        result or its exception.
        """
        entry = self._entries.get(key)
        if entry is not None:
            age = clock() - entry[0]
            if age < max_age and (age < fresh or key in self._reads):
                return entry[1]
        return self._reads.call(key, partial(self._read, key, read))

    def _read(self, key: K, read: Callable[[], V]) -> V:
        entries, read_at = self._entries, clock()
        value = read()
        if len(entries) >= self.max_entries:
            entries.clear()
        entries[key] = read_at, value  # dropped if clear() was called during the read
        return value

    def clear(self) -> None:
        """Drop all values, and the results of reads that are under way."""
        self._entries = {}
        self._reads.clear()
