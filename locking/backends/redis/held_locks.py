"""The held locks of a server."""

from __future__ import annotations

import re
from collections.abc import Sequence

from locking.backends.redis.connection import Connection
from locking.backends.redis.pool import ConnectionPool
from locking.backends.redis.scripts import LIST, TICK, full_token, script_for
from locking.claims import Held


def held_names(pool: ConnectionPool, prefix: str) -> list[str]:
    """Return the names that may be held on one server. Scans every key of the database."""
    pattern = re.sub(r"([\\*?\[\]])", r"\\\1", prefix) + "{*}"
    cursor, keys = "0", set[str]()
    while True:
        scan = "SCAN", cursor, "MATCH", pattern, "COUNT", "1000", "TYPE", "hash"
        cursor, found = pool.call(Connection.command, *scan)
        keys.update(found)
        if cursor == "0":
            return [key[len(prefix) + 1 : -1].removeprefix("\x01") for key in sorted(keys)]


def holders_of(pool: ConnectionPool, keys: Sequence[str], name: str) -> list[Held]:
    """Return the holders of a lock; of a shared one, that whose grant ends first comes first."""
    return [
        Held(
            name=name,
            owner=owner,
            token=full_token(int(ticks), owner),
            since=int(ticks) * TICK,
            expires_in=left_ms / 1000,
            count=count,
            waiters=waiters,
        )
        for owner, ticks, count, left_ms, waiters in pool.call(
            Connection.run, script_for(LIST, name), keys, ("", "0"), None
        )
    ]
