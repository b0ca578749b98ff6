"""The contract on a real Redis."""

import re
from collections.abc import Callable, Iterator

import pytest
import redis as client

from devservers import Redis
from tests.devservers.redis_groups import RedisCluster, SentinelRedis
from tests.locking.backends.contract import Contract, CountsRequests


class OnRedis(CountsRequests):
    path = "locking.backends.redis.RedisBackend"
    down = "redis://127.0.0.1:1/0"

    @pytest.fixture
    def location(self, redis_server: Redis) -> str:
        return redis_server.url

    @pytest.fixture
    def requests(self, location: str) -> Iterator[Callable[[], int]]:
        with client.Redis.from_url(location) as raw:
            yield lambda: raw.info("commandstats")["cmdstat_evalsha"]["calls"]


class TestRedis(OnRedis, Contract):
    pass


class TestSentinel(TestRedis):
    """The master that three Sentinels name; it is the embedded Valkey, the server of the demo."""

    store = "redis-sentinel"
    down = "redis+sentinel://127.0.0.1:1/locks"
    # A minute long, and the scripts are those of one server.
    test_slots_of_a_thousand_killed_holders_are_free_again = None

    @pytest.fixture
    def location(self, redis_sentinel: SentinelRedis) -> str:
        return redis_sentinel.url

    @pytest.fixture
    def requests(self, redis_sentinel: SentinelRedis) -> Iterator[Callable[[], int]]:
        with client.Redis.from_url(redis_sentinel.master.url) as raw:
            yield lambda: raw.info("commandstats")["cmdstat_evalsha"]["calls"]


class TestCluster(TestRedis):
    """Six embedded Valkeys; the names of the tests are in slots of all three masters."""

    store = "redis-cluster"
    down = "redis+cluster://127.0.0.1:1/"
    # A minute long, and the scripts are those of one server.
    test_slots_of_a_thousand_killed_holders_are_free_again = None

    @pytest.fixture
    def location(self, redis_cluster: RedisCluster) -> str:
        return redis_cluster.url

    @pytest.fixture
    def requests(self, redis_cluster: RedisCluster) -> Callable[[], int]:
        def count() -> int:
            stats = "".join(one.ask("INFO commandstats") for one in redis_cluster.masters)
            return sum(map(int, re.findall(r"cmdstat_evalsha:calls=(\d+)", stats)))

        return count
