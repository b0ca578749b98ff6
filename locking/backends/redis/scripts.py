"""The scripts of the lock, and when a waiter runs them again."""

from locking.backends.redis.connection import Script

TAKE = Script("redis_queue.lua", "redis_take.lua")
RELEASE = Script("redis_queue.lua", "redis_release.lua")
KEEP = Script("redis_keep.lua")

RECHECK_DELAY = 0.002
"""Seconds after a grant's end at which the first waiter tries again."""

MAX_SLEEP = 10.0
"""Seconds after which a waiter tries again: the next holder's grant may end before this one's."""
