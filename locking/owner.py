"""Who holds a lock: the name that the store sees, and the thread or task that it stands for."""

import asyncio
import itertools
import os
import secrets
import socket
import threading

from locking.fork import after_fork_in_child

_host = socket.gethostname()
_serial = itertools.count(1)
_secret = ""


def _new_secret() -> None:
    global _secret
    _secret = f"{_host}:{os.getpid()}:%x:{secrets.token_hex(8)}-%x"


_new_secret()
after_fork_in_child(_new_secret)


def new_owner() -> str:
    """Return a name for one claim: host, process and thread to read, 64 random bits to hide."""
    return _secret % (threading.get_ident(), next(_serial))


def context() -> object:
    """Whoever holds a lock: the running asyncio task, else the thread.

    The thread itself, not its ident: that goes to a later thread once this one has ended.
    """
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()
