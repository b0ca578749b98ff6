"""Tokens from a clock, for stores without a reliable counter.

A hybrid logical clock (Kulkarni et al., 2014): one more than the last token, or the time in
microseconds, whichever is greater. Unlike a counter it also grows when the store loses its data.
"""

import time

from locking.fork import ForkSafeLock

_lock = ForkSafeLock()
_last = 0


def clock_token() -> int:
    """Return a token above every other of this process, close to the wall clock."""
    global _last
    with _lock:
        _last = max(_last + 1, time.time_ns() // 1000)
        return _last


def clock_time(token: int) -> float:
    """Return the Unix time at which `clock_token` returned `token`."""
    return token / 1_000_000
