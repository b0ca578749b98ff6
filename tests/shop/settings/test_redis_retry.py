"""redis-py's clients share the circuit breaker of the locks."""

import time
from collections.abc import Callable, Iterator

import pytest
import redis

from devservers import Redis
from devservers.faults.waiting import until
from locking.backends.redis.pool import redis_breaker
from shop.settings.redis_retry import RetryOnce
from tests.devservers.faults.interception import InterceptingProxy

TIMEOUT = 0.5
"""Seconds; the quickest of some refusals by the circuit breaker takes less."""


@pytest.fixture
def proxy(redis_server: Redis) -> Iterator[InterceptingProxy]:
    with InterceptingProxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: InterceptingProxy) -> Iterator[redis.Redis]:
    url = f"redis://{proxy.url}/0"
    with redis.Redis.from_url(url, socket_timeout=TIMEOUT, retry=RetryOnce(url)) as client:
        client.ping()
        yield client


def seconds_until_error(call: Callable[[], object]) -> float:
    began = time.monotonic()
    with pytest.raises((redis.ConnectionError, redis.TimeoutError)):
        call()
    return time.monotonic() - began


def fails_at_once(call: Callable[[], object]) -> bool:
    return min(seconds_until_error(call) for _ in range(3)) < TIMEOUT


def test_a_timeout_opens_the_circuit_breaker(proxy: InterceptingProxy, client: redis.Redis) -> None:
    breaker = redis_breaker(f"redis://{proxy.url}/0")
    proxy.hold()
    assert seconds_until_error(client.ping) >= TIMEOUT, "nothing was lost"
    assert breaker.is_open
    assert fails_at_once(client.ping), "the call waited for the server again"
    proxy.cut()
    proxy.resume()
    until(lambda: not breaker.is_open, "the probe of the circuit breaker")
    assert client.ping()


def test_a_refused_connection_does_not_open_it(
    proxy: InterceptingProxy, client: redis.Redis
) -> None:
    proxy.cut(refuse=True)
    seconds_until_error(client.ping)
    assert not redis_breaker(f"redis://{proxy.url}/0").is_open
    proxy.accept()
    assert client.ping()
