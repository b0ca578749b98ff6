"""A cache that the shop can do without."""

import logging
import time
from typing import Any, ClassVar

from django.core.cache.backends.redis import RedisCache
from redis.exceptions import RedisError

logger = logging.getLogger("shop")


SILENCE = 2.0
"""Seconds for which a process reads nothing from a Redis that did not answer: a page reads often,
and would wait each time. Writing is tried nevertheless, or a session that has ended would stay."""


class OptionalRedisCache(RedisCache):
    """A silent Redis is a miss, not an error: sessions are in the database too."""

    _silent_until: ClassVar[dict[str, float]] = {}

    def __init__(self, server: str, params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self._where = str(server)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """None when Redis is silent, as when there is nothing."""
        if time.monotonic() < self._silent_until.get(self._where, 0.0):
            return None
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
            self._silent_until[self._where] = time.monotonic() + SILENCE
            return None
