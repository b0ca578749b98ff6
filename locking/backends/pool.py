"""Idle connections to one server, for every client of the lock backends."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Generic, Protocol, TypeVar

from locking.fork import after_fork_in_child


class Pooled(Protocol):
    """A connection, or several of them, that one thread uses at a time."""

    def is_reusable(self) -> bool:
        """Return False when the server has closed the connection."""

    def close(self) -> None:
        """Close the connection."""

    def abandon(self) -> None:
        """Drop the connection in a forked child without a message to the server."""


C = TypeVar("C", bound=Pooled)


class IdlePool(Generic[C]):
    """A stack of idle connections: the most recently used is taken first. Thread-safe."""

    def __init__(self, max_idle: int) -> None:
        self._max_idle = max_idle
        self._idle: deque[C] = deque()
        self._all: weakref.WeakSet[C] = weakref.WeakSet()
        after_fork_in_child(self.reset_after_fork)

    @property
    def connections(self) -> list[C]:
        """Return all connections of this process, idle or in use."""
        return list(self._all)

    def add(self, connection: C) -> C:
        """Register a new connection, so that a forked child abandons it; return it."""
        self._all.add(connection)
        return connection

    def take(self) -> C | None:
        """Return an idle connection that is still open, or None."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.is_reusable():
                return connection

    def give(self, connection: C) -> None:
        """Keep a connection that no reply is due on, or close it when enough are idle."""
        if len(self._idle) < self._max_idle:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def reset_after_fork(self) -> None:
        """Abandon the parent's connections in a forked child, those in use included."""
        for connection in self.connections:
            connection.abandon()
        self._all.clear()
        self._idle.clear()
