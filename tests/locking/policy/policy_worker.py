"""Commands of a process that records from when to when it believed that it held a lock."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

from django.conf import settings
from django.db import connection, transaction

from locking import lock
from locking.exceptions import LockError, LockUnavailable
from locking.policy import active

HOLD = 0.004
"""Seconds for which a contender holds a lock, at most."""

KEEP_SNAPSHOT = {
    "mysql": "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ",
}
"""Let a transaction of this session see the database as it was at its first query."""


class Grant(NamedTuple):
    """The time for which one caller believed that it held a lock; monotonic, of all processes."""

    name: str
    backend: str
    epoch: int
    start: float
    end: float


def overlaps(grants: Sequence[Grant]) -> list[tuple[Grant, Grant]]:
    """Return the pairs of grants of one name that were in force at the same time."""
    found, last = [], dict[str, Grant]()
    for grant in sorted(grants, key=lambda each: each.start):
        before = last.get(grant.name)
        if before is not None and grant.start < before.end:
            found.append((before, grant))
        if before is None or grant.end > before.end:
            last[grant.name] = grant
    return found


class PolicyCommands:
    """The commands of the process; `max_age` is MAX_AGE there."""

    def __init__(self, locks: dict[str, Any], max_age: float) -> None:
        settings.LOCKS, settings.LOCK_POLICY = locks, {"BACKEND": next(iter(locks))}
        active.MAX_AGE, active.FRESH = max_age, max_age / 2
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()
        self._grants: list[Grant] = []

    def contend(self, names: list[str], threads: int, idle: float, snapshots: bool = False) -> None:
        """Acquire and release in threads that then pause for `idle` seconds.

        With `snapshots`, they do so in transactions that began up to half a second before.
        """
        for _ in range(threads):
            thread = threading.Thread(target=self._contend, args=(names, idle, snapshots))
            thread.start()
            self._threads.append(thread)

    def _contend(self, names: list[str], idle: float, snapshots: bool) -> None:
        try:
            while not self._ended.is_set():
                with self._old_snapshot() if snapshots else nullcontext():
                    began = time.monotonic()
                    while time.monotonic() < began + 0.5 and not self._ended.is_set():
                        self._once(random.choice(names))
                        time.sleep(idle)
        finally:
            connection.close()

    @contextmanager
    def _old_snapshot(self) -> Iterator[None]:
        """Run the block in a transaction that sees the policy as it is now until its end."""
        connection.ensure_connection()
        if connection.vendor in KEEP_SNAPSHOT:
            with connection.cursor() as cursor:
                cursor.execute(KEEP_SNAPSHOT[connection.vendor])
        else:
            connection.transaction_mode = "DEFERRED"
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT backend FROM locking_lockpolicy")
            yield

    def _once(self, name: str) -> None:
        held = lock(name)
        try:
            if not held.acquire(timeout=10):
                return
        except LockUnavailable:
            time.sleep(0.02)
            return
        lease, start = held.lease, time.monotonic()
        time.sleep(random.uniform(0, HOLD))
        end = max(start, min(time.monotonic(), lease.deadline))
        self._grants.append(Grant(name, lease.backend.alias, lease.epoch, start, end))
        with suppress(LockError):
            held.release()

    def stop(self) -> list[Grant]:
        """End the contenders; return their grants."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        return self._grants
