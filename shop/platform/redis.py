"""The Redis that neither evicts nor loses data (REDIS_URL).

All functions raise ServiceUnavailable, in bounded time, if it is unavailable.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from django.conf import settings

from locking import LockUnavailable
from locking.backends.redis.connection import Connection, Script
from locking.backends.redis.pool import ConnectionPool
from shop.errors import ServiceUnavailable

TIMEOUT = 1.0
"""Seconds for which a reply of Redis is awaited."""


def command(*command: object) -> Any:
    """Send a command that may be executed twice; return its reply."""
    return _ask(lambda redis: redis.command(*map(str, command)))


def run(script: Script, keys: Sequence[str], *args: object) -> Any:
    """Run a script that may be executed twice; return its reply."""
    return _ask(lambda redis: redis.run(script, keys, list(map(str, args))))


def _ask(request: Callable[[Connection], Any]) -> Any:
    try:
        return _pool(settings.REDIS_URL).call(request)
    except LockUnavailable as error:
        raise ServiceUnavailable from error


@cache
def _pool(url: str) -> ConnectionPool:
    return ConnectionPool(url, timeout=TIMEOUT, connect_timeout=TIMEOUT)
