"""Fencing tokens out of a clock, for stores that have no counter of their own that can be trusted.

A hybrid logical clock (Kulkarni et al., 2014): one more than the last token, or the time in
microseconds, whichever is greater. It grows even when the store forgets what it gave out, which a
plain counter does not.
"""

import threading
import time

_lock = threading.Lock()
_last = 0


def now_us() -> int:
    """Wall clock in microseconds."""
    return time.time_ns() // 1000


def clock_token() -> int:
    """A token above every other of this process, and close to the wall clock in microseconds."""
    global _last
    with _lock:
        _last = max(_last + 1, now_us())
        return _last
