"""A Redis cache whose failures are misses."""

import logging
from typing import Any

from django.core.cache.backends.redis import RedisCache
from redis.exceptions import RedisError

logger = logging.getLogger("shop")


class OptionalRedisCache(RedisCache):
    """Treats an unavailable Redis as a miss: sessions, for example, are also in the database."""

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Return the value, or None if there is none or Redis is unavailable."""
        return self._or_none(super().get, *args, **kwargs)

    def set(self, *args: Any, **kwargs: Any) -> None:
        """Store the value if Redis is available."""
        self._or_none(super().set, *args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> bool:
        """Delete the value; return False if Redis is unavailable."""
        return bool(self._or_none(super().delete, *args, **kwargs))

    def has_key(self, *args: Any, **kwargs: Any) -> bool:
        """Return True if the key exists, False also if Redis is unavailable."""
        return bool(self._or_none(super().has_key, *args, **kwargs))

    def _or_none(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except RedisError as error:
            logger.warning("Cache skipped: Redis is unavailable (%s)", error)
            return None
