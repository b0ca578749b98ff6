"""The contract on a real Redis, and its faults on groups of servers."""

from locking.testing.contract_faults import Faults
from tests.locking.backends.contract import Contract, OnRealStores
from tests.locking.backends.store_drivers import ClusterDriver, RedisDriver, SentinelDriver


class TestRedis(Contract):
    path = "locking.backends.redis.RedisBackend"
    down = "redis://127.0.0.1:1/0"
    Driver = RedisDriver


class OnGroup(OnRealStores, Faults):
    """The scripts are those of one server; what differs is how a client finds and loses them."""

    test_fair_lock_is_granted_in_order = Contract.test_fair_lock_is_granted_in_order
    test_lock_works_after_a_fork = Contract.test_lock_works_after_a_fork
    test_unreachable_store_fails_in_bounded_time = (
        Contract.test_unreachable_store_fails_in_bounded_time
    )
    test_every_declared_capability_is_proved = None


class TestSentinel(OnGroup):
    """The master that three Sentinels name; it is the embedded Valkey, the server of the demo."""

    store = "redis-sentinel"
    path = TestRedis.path
    down = "redis+sentinel://127.0.0.1:1/locks"
    Driver = SentinelDriver


class TestCluster(OnGroup):
    """Six embedded Valkeys; the names of the tests are in slots of all three masters."""

    store = "redis-cluster"
    path = TestRedis.path
    down = "redis+cluster://127.0.0.1:1/"
    Driver = ClusterDriver
