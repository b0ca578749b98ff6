"""The contract on a real Redis."""

from tests.locking.backends.contract import Contract
from tests.locking.backends.store_drivers import ClusterDriver, RedisDriver, SentinelDriver


class TestRedis(Contract):
    path = "locking.backends.redis.RedisBackend"
    down = "redis://127.0.0.1:1/0"
    Driver = RedisDriver


class TestSentinel(Contract):
    """The master that three Sentinels name; it is the embedded Valkey, the server of the demo."""

    store = "redis-sentinel"
    path = TestRedis.path
    down = "redis+sentinel://127.0.0.1:1/locks"
    Driver = SentinelDriver


class TestCluster(Contract):
    """Six embedded Valkeys; the names of the tests are in slots of all three masters."""

    store = "redis-cluster"
    path = TestRedis.path
    down = "redis+cluster://127.0.0.1:1/"
    Driver = ClusterDriver
