"""Argument checks, callers, and the names by which stores know them."""

import asyncio
import itertools
import math
import os
import secrets
import socket
import threading
from typing import TypeGuard

from locking.exceptions import LockMisuse
from locking.fork import after_fork_in_child

MAX_NAME = 200
"""Longest lock name, in characters, that every store can keep."""
MAX_TTL = 24 * 3600.0
"""Longest ttl, in seconds, that every store and every waiting thread can handle."""

_host = socket.gethostname()
_serial = itertools.count(1)
_owner_format = ""


def _set_owner_format() -> None:
    global _owner_format
    _owner_format = f"{_host}:{os.getpid()}:%x:{secrets.token_hex(8)}-%x"


_set_owner_format()
after_fork_in_child(_set_owner_format)


def new_owner() -> str:
    """Return a unique name for one claim: host, process and thread, then 64 random bits."""
    return _owner_format % (threading.get_ident(), next(_serial))


def current_caller() -> object:
    """Return the running asyncio task, or the current thread outside of tasks.

    The thread object, not its ident: Python assigns the ident of an ended thread to a later one.
    """
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is an int or a float; a bool is neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_name(name: str) -> None:
    """Raise LockMisuse if some store could not keep `name`."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise LockMisuse(
            f"Invalid lock name {name!r:.40}: give 1 to {MAX_NAME} printable characters."
        )


def check_ttl(ttl: float) -> None:
    """Raise LockMisuse unless `ttl` is a possible lease in seconds."""
    if not 0 < ttl <= MAX_TTL:
        raise LockMisuse(f"Invalid ttl {ttl}: give seconds above 0, at most {MAX_TTL:g}.")


def check_timeout(timeout: float | None) -> None:
    """Raise LockMisuse unless `timeout` is None or seconds to wait."""
    if timeout is not None and not timeout >= 0:
        raise LockMisuse(
            f"Invalid timeout {timeout}: give seconds, 0 or more; math.inf waits forever."
        )


def check_wait(blocking: bool, timeout: float | None, default: float | None) -> float:
    """Return the seconds to wait for the arguments of `acquire`; math.inf waits forever."""
    check_timeout(timeout)
    if not blocking:
        if timeout is not None:
            raise LockMisuse("blocking=False cannot have a timeout: give one of them.")
        return 0.0
    if timeout is not None:
        return timeout
    return math.inf if default is None else default
