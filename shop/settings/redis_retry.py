"""The retry policy of redis-py's clients, for the cache and the rate limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from locking.backends.redis.pool import NOT_RESPONDING, redis_breaker

T = TypeVar("T")


class RetryOnce(Retry):
    """Repeat a command once after a broken connection.

    A timeout opens the circuit breaker of the server, which the locks share; while it is open,
    commands fail at once.
    """

    def __init__(self, url: str) -> None:
        super().__init__(NoBackoff(), 1)  # redis-py's default waits for seconds
        self._breaker = redis_breaker(url)

    def __deepcopy__(self, memo: object) -> Self:
        """Return the same object: redis-py copies it for each connection."""
        return self

    def call_with_retry(self, do: Callable[[], T], *args: Any, **kwargs: Any) -> T:
        """Call `do`, see `redis.retry.Retry`."""

        def attempt() -> T:
            if self._breaker.is_open:
                raise redis.ConnectionError(NOT_RESPONDING)
            try:
                return do()
            except (redis.TimeoutError, TimeoutError):
                self._breaker.open()
                raise

        return super().call_with_retry(attempt, *args, **kwargs)
