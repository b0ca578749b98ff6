"""The contract on a real Redis."""

import pytest

from devservers import Redis
from tests.devservers.redis_groups import RedisCluster, SentinelRedis
from tests.locking.backends.contract import Contract
from tests.locking.backends.store_drivers import ClusterDriver, RedisDriver, SentinelDriver


class OnRedis(Contract):
    path = "locking.backends.redis.RedisBackend"
    down = "redis://127.0.0.1:1/0"

    @pytest.fixture
    def location(self, redis_server: Redis) -> str:
        return redis_server.url


class TestRedis(OnRedis):
    Driver = RedisDriver


class TestSentinel(Contract):
    """The master that three Sentinels name; it is the embedded Valkey, the server of the demo."""

    store = "redis-sentinel"
    path = OnRedis.path
    down = "redis+sentinel://127.0.0.1:1/locks"
    Driver = SentinelDriver

    @pytest.fixture
    def location(self, redis_sentinel: SentinelRedis) -> str:
        return redis_sentinel.url


class TestCluster(Contract):
    """Six embedded Valkeys; the names of the tests are in slots of all three masters."""

    store = "redis-cluster"
    path = OnRedis.path
    down = "redis+cluster://127.0.0.1:1/"
    Driver = ClusterDriver

    @pytest.fixture
    def location(self, redis_cluster: RedisCluster) -> str:
        return redis_cluster.url
