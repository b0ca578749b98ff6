"""The Redis servers that neither evict nor lose data: REDIS_URL, and those of an `Address`.

All functions raise ServiceUnavailable, in bounded time, if the server is unavailable.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings

from locking import LockUnavailable
from locking.backends.redis.cluster import open_pool
from locking.backends.redis.connection import Connection, Script
from locking.backends.redis.pool import ConnectionPool
from shop.errors import ServiceUnavailable

TIMEOUT = 1.0
"""Seconds for which a reply of Redis is awaited."""


class Address(NamedTuple):
    """A server, or the node of a Cluster that has the keys with a hash tag."""

    url: str
    tag: str


def command(*command: object, at: Address | None = None) -> Any:
    """Send a command that may be executed twice, by default to REDIS_URL; return its reply."""
    return _ask(at, Connection.command, *map(str, command))


def run(script: Script, keys: Sequence[str], *args: object, at: Address | None = None) -> Any:
    """Run a script that may be executed twice, by default on REDIS_URL; return its reply."""
    return _ask(at, Connection.run, script, keys, list(map(str, args)), None)


def scan_hash(key: str, *, count: int, at: Address | None = None) -> Iterator[tuple[str, str]]:
    """Yield fields and values of a hash; each command reads about `count` of them."""
    cursor = "0"
    while True:
        cursor, flat = command("HSCAN", key, cursor, "COUNT", count, at=at)
        yield from zip(flat[::2], flat[1::2], strict=True)
        if cursor == "0":
            return


def scripts(module: str, *names: str) -> list[Script]:
    """Return the scripts in the folder `lua` next to a module, given its `__file__`."""
    return [Script(str(Path(module).parent / "lua" / f"{name}.lua")) for name in names]


def _ask(at: Address | None, request: Callable[..., Any], *args: object) -> Any:
    try:
        pool = _pool(at.url).of(at.tag) if at else _pool(settings.REDIS_URL)
        return pool.call(request, *args)
    except LockUnavailable as error:
        raise ServiceUnavailable from error


@cache
def _pool(url: str) -> ConnectionPool:
    return open_pool(url, timeout=TIMEOUT, connect_timeout=TIMEOUT)
