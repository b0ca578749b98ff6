"""A Redis cache whose failures are misses."""

import logging
from collections.abc import Callable
from typing import Any

from django.core.cache.backends.redis import RedisCache
from redis.exceptions import RedisError

logger = logging.getLogger("shop")


def _or_none(call: Callable[..., Any]) -> Callable[..., Any]:
    def optional(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except RedisError as error:
            logger.warning("Cache skipped: Redis is unavailable (%s)", error)
            return None

    return optional


class OptionalRedisCache(RedisCache):
    """Treats an unavailable Redis as a miss: sessions, for example, are also in the database."""

    get = _or_none(RedisCache.get)
    set = _or_none(RedisCache.set)
    delete = _or_none(RedisCache.delete)
    has_key = _or_none(RedisCache.has_key)
