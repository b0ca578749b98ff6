"""The contract on a real Redis."""

from collections.abc import Callable, Iterator

import pytest
import redis as client

from devservers import Redis
from tests.locking.backends.contract import Contract, CountsRequests


class TestRedis(CountsRequests, Contract):
    path = "locking.backends.redis.RedisBackend"
    down = "redis://127.0.0.1:1/0"

    @pytest.fixture
    def location(self, redis_server: Redis) -> str:
        return redis_server.url

    @pytest.fixture
    def requests(self, location: str) -> Iterator[Callable[[], int]]:
        with client.Redis.from_url(location) as raw:
            yield lambda: raw.info("commandstats")["cmdstat_evalsha"]["calls"]


class TestUnfairRedis(TestRedis):
    @pytest.fixture
    def options(self) -> dict[str, object]:
        return {"FAIR": False}

    test_fair_lock_is_granted_in_order = None


@pytest.fixture(scope="module")
def valkey() -> Iterator[Redis]:
    """The server of the demo."""
    with Redis(prefer="embedded") as server:
        yield server


class TestEmbeddedValkey(TestRedis):
    @pytest.fixture
    def location(self, valkey: Redis) -> str:
        return valkey.url
