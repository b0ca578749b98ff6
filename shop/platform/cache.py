"""A cache that the shop can do without."""

import logging
from typing import Any

from django.core.cache.backends.redis import RedisCache
from redis.exceptions import RedisError

logger = logging.getLogger("shop")


class OptionalRedisCache(RedisCache):
    """A silent Redis is a miss, not an error: sessions are in the database too."""

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """None when Redis is silent, as when there is nothing."""
        return self._or_none(super().get, *args, **kwargs)

    def set(self, *args: Any, **kwargs: Any) -> None:
        """Stores, or not."""
        self._or_none(super().set, *args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> bool:
        """False when Redis is silent."""
        return bool(self._or_none(super().delete, *args, **kwargs))

    def has_key(self, *args: Any, **kwargs: Any) -> bool:
        """False when Redis is silent."""
        return bool(self._or_none(super().has_key, *args, **kwargs))

    def _or_none(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except RedisError as error:
            logger.warning("the cache does not answer: %s", error)
            return None
