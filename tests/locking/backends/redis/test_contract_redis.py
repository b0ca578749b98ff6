"""The contract on a real Redis."""

from collections.abc import Iterator

import pytest

from devservers import Redis
from tests.locking.backends.contract import Contract


class TestRedis(Contract):
    path = "locking.backends.redis.RedisBackend"
    down = "redis://127.0.0.1:1/0"

    @pytest.fixture
    def location(self, redis_server: Redis) -> str:
        return redis_server.url


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
