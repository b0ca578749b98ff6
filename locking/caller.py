"""Callers, and the names by which stores know their claims."""

import asyncio
import itertools
import os
import secrets
import socket
import sys
import threading
import weakref
from contextvars import ContextVar
from types import FrameType

from asgiref.sync import SyncToAsync

from locking.fork import after_fork_in_child

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
