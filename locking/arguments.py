"""What callers may ask for: refused here, before any store hears of it."""

import math
from typing import TypeGuard

from locking.exceptions import LockMisuse

MAX_NAME = 200
"""Characters of a name that every store can keep."""
MAX_TTL = 24 * 3600.0
"""Seconds of a grant that every store, and whoever waits for its end, can count."""


def is_number(value: object) -> TypeGuard[float]:
    """Whether it can be seconds; True is no number here."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_name(name: str) -> None:
    """Refuse names that some store could not keep."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise LockMisuse(
            f"{name!r:.40} is no lock name: give 1 to {MAX_NAME} printable characters."
        )


def check_ttl(ttl: float) -> None:
    """Refuse lives that no grant can have."""
    if not 0 < ttl <= MAX_TTL:
        raise LockMisuse(f"ttl is {ttl}: give a positive number of seconds, {MAX_TTL:g} at most.")


def check_timeout(timeout: float | None) -> None:
    """Refuse times that nobody can wait."""
    if timeout is not None and not timeout >= 0:
        raise LockMisuse(f"timeout is {timeout}: give seconds, 0 or more; math.inf waits for ever.")


def check_wait(blocking: bool, timeout: float | None, default: float | None) -> float:
    """The seconds to wait that a call of `acquire` means."""
    check_timeout(timeout)
    if not blocking:
        if timeout is not None:
            raise LockMisuse("A timeout makes no sense with blocking=False: give one of them.")
        return 0.0
    if timeout is not None:
        return timeout
    return math.inf if default is None else default
