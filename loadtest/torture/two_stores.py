"""Hold locks in the store of a run and in another one, in which no fault is injected."""

import random
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from locking import LockError, LockUnavailable
from locking import locks as handler
from locking.lease.lock import BaseLock

if TYPE_CHECKING:
    from loadtest.torture.workload import Work

OTHER = "other"
SECONDS = (1.2, 2.2)
"""Seconds of a hold, in which each lease must be renewed."""
PAUSE = 0.02
REPLY_SECONDS = 0.25
"""Seconds in which the other store must have replied all along: else the machine was too slow, and
the end of a lease proves nothing."""


def hold_in_two_stores(work: "Work", rng: random.Random) -> None:
    """Hold locks of both stores; no lease of the other one may be lost."""
    other, mine = handler[OTHER], f"{work.recorder.actor}:{threading.get_ident()}".replace(" ", "")
    held = []
    for name in work.names:
        with suppress(LockUnavailable):
            lock, owner = work.backend.lock(f"{name}:{mine}"), work.owner()
            if lease := work.acquire(lock, owner, 0.05):
                held.append((lock, owner, lease))
    neighbour = other.lock(f"{work.names[0]}:{mine}")
    slowest, end = _seconds_to_acquire(neighbour), time.monotonic() + rng.uniform(*SECONDS)
    while time.monotonic() < end:
        probed = other.lock(f"{work.names[0]}:{mine}:probe")
        slowest = max(slowest, _seconds_to_acquire(probed))
        probed.release()
        time.sleep(PAUSE)
    try:
        neighbour.release()
    except LockError as error:
        if slowest < REPLY_SECONDS:
            work.errors.append(f"{error!r}, but its store replied within {slowest:.2f} s")
    work.counts["neighbours"] += 1
    for lock, owner, lease in held:
        with work.expected_errors():
            work.release(lock, owner, lease)


def _seconds_to_acquire(lock: BaseLock) -> float:
    started = time.monotonic()
    assert lock.acquire(timeout=10), "a lock without other users was not granted"
    return time.monotonic() - started
