"""Callbacks that reset the state of a process after it was forked.

A forked child has a copy of its parent's sockets and locks but none of its threads. Each module
or object that keeps such state registers one callback here.
"""

import inspect
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Callable

logger = logging.getLogger("locking")

Callback = Callable[[], object]

generation = 0
"""The number of forks between the first process and this one."""
_serial = itertools.count()
_callbacks: dict[int, Callable[[], Callback | None]] = {}
"""Functions that return a callback, or None once its object is gone, in order of registration."""


def after_fork_in_child(callback: Callback) -> None:
    """Call `callback` in every child forked from now on, after those registered before it.

    A bound method is referenced weakly: it is dropped when its object is garbage-collected.
    """
    # Not with weakref callbacks, which could run when the interpreter has torn down this module.
    for key, reference in list(_callbacks.items()):
        if reference() is None:
            _callbacks.pop(key, None)
    _callbacks[next(_serial)] = _weak(callback) if inspect.ismethod(callback) else lambda: callback


def _weak(method: Callback) -> Callable[[], Callback | None]:
    # Not weakref.WeakMethod, which always has a weakref callback.
    owner = weakref.ref(method.__self__)  # type: ignore[attr-defined]
    name = method.__name__
    return lambda: getattr(owner(), name, None)


def _run() -> None:
    global generation
    generation += 1
    for reference in list(_callbacks.values()):
        callback = reference()
        try:
            if callback is not None:
                callback()
        except Exception:  # the other callbacks must run all the same
            logger.exception("Callback failed in a forked child: %r", callback)


class ForkSafeLock:
    """A lock that is new in a forked child, where the holder of the parent's does not exist."""

    def __init__(self) -> None:
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()


os.register_at_fork(after_in_child=_run)
