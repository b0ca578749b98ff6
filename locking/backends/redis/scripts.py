"""The scripts of the lock, when a waiter runs them again, and the tokens that they return."""

import zlib

from locking.backends.redis.connection import Script
from locking.names import SHARED

TAKE = Script("redis_queue.lua", "redis_take.lua")
RELEASE = Script("redis_queue.lua", "redis_release.lua")
KEEP = Script("redis_keep.lua")
TAKE_OVER = Script("redis_queue.lua", "redis_take_over.lua")
LIST = Script("redis_list.lua")
_BASE = ("redis_queue.lua", "redis_shared.lua")
SHARED_SCRIPTS = {
    TAKE: Script(*_BASE, "redis_shared_take.lua"),
    RELEASE: Script(*_BASE, "redis_shared_release.lua"),
    KEEP: Script(*_BASE, "redis_shared_keep.lua"),
    LIST: Script(*_BASE, "redis_shared_list.lua"),
}


def script_for(script: Script, name: str) -> Script:
    """Return the script that does the same for `name`, which may be that of a shared lock."""
    return SHARED_SCRIPTS[script] if name.startswith(SHARED) else script


TICK = 16e-6
"""Seconds between two tokens of a clock. Ticks fit the 53 bits of a number in Lua."""

CLOCK_ERROR = 0.002
"""Seconds by which a grant ends for its holder before it ends in Redis, which measures the ends in
whole milliseconds."""

SALT_BITS = 15
"""Low bits of a token, a hash of its owner: two masters may grant in one tick, and these differ."""


def full_token(ticks: int, owner: str) -> int:
    """Return the fencing token of a grant: grows with the ticks, and differs between owners."""
    return ticks << SALT_BITS | zlib.crc32(owner.encode()) & (1 << SALT_BITS) - 1
