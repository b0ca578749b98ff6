"""The held locks of a server, for operators."""

from __future__ import annotations

import re
from typing import Any

from locking.backends.redis.connection import Connection
from locking.backends.redis.pool import ConnectionPool
from locking.backends.redis.scripts import LIST, TICK, full_token
from locking.claims import Held
from locking.names import SHARED


def held_locks(pool: ConnectionPool, prefix: str) -> list[Held]:
    """Return the held locks of one server. Scans every key of the database."""

    def command(*command: str) -> Any:
        return pool.call(lambda connection: connection.command(*command))

    pattern = re.sub(r"([\\*?\[\]])", r"\\\1", prefix) + "{*}"
    cursor, keys = "0", set[str]()
    while True:
        cursor, found = command("SCAN", cursor, "MATCH", pattern, "COUNT", "1000", "TYPE", "hash")
        keys.update(found)
        if cursor == "0":
            break
    locks = []
    for key in sorted(keys):
        name = key[len(prefix) + 1 : -1].removeprefix("\x01")
        if name.startswith(SHARED):
            locks += shared_holders(pool, key, name)
            continue
        owner, ticks, count = command("HMGET", key, "owner", "token", "count")
        left = command("PTTL", key)
        if owner is None or ticks is None or left < 0:
            continue  # released since, or not a lock
        waiters = max(0, command("LLEN", f"{key}:waiters") - 1)
        locks.append(_held(name, owner, ticks, count, left, waiters))
    return locks


def _held(name: str, owner: str, ticks: Any, count: Any, left_ms: int, waiters: int) -> Held:
    return Held(
        name=name,
        owner=owner,
        token=full_token(int(ticks), owner),
        since=int(ticks) * TICK,
        expires_in=left_ms / 1000,
        count=int(count),
        waiters=waiters,
    )


def holder_of(pool: ConnectionPool, key: str, name: str) -> str | None:
    """Return the owner of the lock; of a shared lock, the holder whose grant ends first."""
    if name.startswith(SHARED):
        return next((held.owner for held in shared_holders(pool, key, name)), None)
    used, owner = pool.retry_once(pool.get(), Connection.command, "HGET", key, "owner")
    pool.give(used)
    return owner  # type: ignore[no-any-return]


def shared_holders(pool: ConnectionPool, key: str, name: str) -> list[Held]:
    """Return the holders of a shared lock; the one whose grant ends first comes first."""
    keys = key, f"{key}:waiters", key, f"{key}:holders"
    used, rows = pool.retry_once(pool.get(), Connection.run, LIST, keys, ("", "0"), None)
    pool.give(used)
    return [_held(name, *row) for row in rows]
