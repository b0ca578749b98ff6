"""A lock that is acquired, and the duration of a call."""

import time
from collections.abc import Callable
from typing import Any

from locking.lease import Lease
from locking.lease.lock import BaseLock


def acquired(lock: BaseLock, **options: Any) -> Lease:
    """Acquire a free lock; return its lease."""
    assert lock.acquire(**options)
    return lock.lease


def elapsed(call: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    started = time.monotonic()
    call()
    return time.monotonic() - started
