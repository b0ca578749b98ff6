"""Values in the memory of one process."""

from collections.abc import Callable
from functools import partial
from typing import Generic

from locking.refresh import K, SharedCalls, V, clock


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
