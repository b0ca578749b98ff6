"""The lock on one Redis or Valkey server."""

from locking.backends.redis.backend import RedisBackend

__all__ = ["RedisBackend"]
