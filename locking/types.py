"""Argument checks, callers, and the names by which stores know them."""

import asyncio
import hashlib
import itertools
import math
import os
import secrets
import socket
import sys
import threading
import weakref
from contextvars import ContextVar
from types import FrameType
from typing import TypeGuard

from asgiref.sync import SyncToAsync

from locking.exceptions import LockMisuse
from locking.fork import after_fork_in_child

MAX_NAME = 200
"""Longest lock name, in characters, that every store can keep."""
MAX_TTL = 24 * 3600.0
"""Longest ttl, in seconds, that every store and every waiting thread can handle."""

IDEMPOTENCY_PREFIX, BUILD_PREFIX, UNIQUE_PREFIX = "idempotency:", "build:", "unique:"
SEMAPHORE_PREFIX, READ_WRITE_PREFIX = "semaphore:", "read-write:"
SHARED = (SEMAPHORE_PREFIX, READ_WRITE_PREFIX)
"""Prefixes of the names of locks that may have several holders."""
RESERVED = (IDEMPOTENCY_PREFIX, BUILD_PREFIX, UNIQUE_PREFIX, *SHARED)
"""Prefixes of names that a plain lock cannot have. No switch waits for them: the policy does not
choose their backend, or two holders do no harm."""

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


class _Bridge:
    """The caller behind `sync_to_async`; it lives as long as the context of the calling task.

    asgiref copies it from the thread to the task and back, so a later call finds it again.
    """

    __slots__ = ("__weakref__",)


_bridge: ContextVar[_Bridge] = ContextVar("locking_bridge")


def current_caller() -> object:
    """Return the running asyncio task, or the current thread outside of tasks.

    Tasks share the threads in which `sync_to_async` runs their calls, so there the caller is a weak
    reference that differs from task to task.

    The thread object, not its ident: Python assigns the ident of an ended thread to a later one.
    """
    if asyncio._get_running_loop() is not None:
        return asyncio.current_task() or threading.current_thread()
    if sync_to_async_call() is None:
        return threading.current_thread()
    bridge = _bridge.get(None)
    if bridge is None:
        bridge = _Bridge()
        _bridge.set(bridge)
    return weakref.ref(bridge)


def sync_to_async_call() -> object | None:
    """Return an object that only this thread's present call of `sync_to_async` has, or None."""
    if "main_event_loop" not in vars(SyncToAsync.threadlocal):
        return None  # this thread never ran one
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not SyncToAsync.thread_handler.__code__:
        frame = frame.f_back
    # A list for each call. Not the frame: it keeps the context and the arguments of the call.
    return None if frame is None else frame.f_locals["task_context"]


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is an int or a float; a bool is neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def storable(name: str) -> str:
    """Return the name, or its start and a digest if no store could keep it."""
    if len(name) <= MAX_NAME and name.isprintable():
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return "".join(filter(str.isprintable, name[:80])) + f"#{digest}"


class ReservedName(str):
    """The name of one of the library's own locks, which begins with a reserved prefix."""

    __slots__ = ()


def check_name(name: str) -> None:
    """Raise LockMisuse if some store could not keep `name`, or if its prefix is reserved."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise LockMisuse(
            f"Invalid lock name {name!r:.40}: give 1 to {MAX_NAME} printable characters."
        )
    if name.startswith(RESERVED) and not isinstance(name, ReservedName):
        raise LockMisuse(
            f"Invalid lock name {name!r:.40}: names that begin with {' or '.join(RESERVED)} belong "
            "to the library, and no switch of the backend waits for them."
        )


def check_ttl(ttl: float) -> None:
    """Raise LockMisuse unless `ttl` is a possible lease in seconds."""
    try:
        is_valid = 0 < ttl <= MAX_TTL
    except TypeError:
        is_valid = False
    if not is_valid:
        raise LockMisuse(f"Invalid ttl {ttl!r}: give seconds above 0, at most {MAX_TTL:g}.")


def check_timeout(timeout: float | None) -> None:
    """Raise LockMisuse unless `timeout` is None or seconds to wait."""
    try:
        is_valid = timeout is None or timeout >= 0
    except TypeError:
        is_valid = False
    if not is_valid:
        raise LockMisuse(
            f"Invalid timeout {timeout!r}: give seconds, 0 or more; math.inf waits forever."
        )


def check_wait(blocking: bool, timeout: float | None, default: float | None) -> float:
    """Return the seconds to wait for the arguments of `acquire`; math.inf waits forever."""
    if timeout is not None:
        check_timeout(timeout)
        if not blocking:
            raise LockMisuse("blocking=False cannot have a timeout: give one of them.")
        return timeout
    if not blocking:
        return 0.0
    return math.inf if default is None else default
