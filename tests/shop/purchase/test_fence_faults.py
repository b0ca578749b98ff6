"""A second buyer gets the lock while the first one, between read and write, believes to hold it.

XF: naive is the control and sells the last unit twice; fenced and conditional do not.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import redis

from devservers import Redis
from devservers.faults.proxy import Proxy
from devservers.faults.waiting import until
from locking import locks
from tests.fault_rows import audit_sale
from tests.shop.making import a_sale, put_in_force
from tests.shop.races.conftest import processes
from tests.shop.races.race_worker import RaceWorker, a_form, outcomes

__all__ = ["processes"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]


def overlap(workers: list[RaceWorker], backend: str, inject: Callable[[], object]) -> None:
    """Inject the fault into three holders, one per strategy, while another customer buys."""
    *late, second = workers
    has_token = locks[backend].capabilities.fencing
    # Where a token alone can refuse the late write, nothing else may: there is a unit left.
    units = {"naive": 1, "fenced": 1, "conditional": 1 + has_token}
    held = []
    for (strategy, stock), first in zip(units.items(), late, strict=True):
        put_in_force(backend, strategy)
        sale = a_sale(stock=stock)
        first.run_until("stock.read", a_form(sale))
        held.append((strategy, first, sale))
    inject()
    for strategy, _, sale in held:
        put_in_force(backend, strategy)
        assert outcomes(*second.run(a_form(sale))) == {"order": 1}, "the lock was still held"
    for strategy, first, sale in held:
        put_in_force(backend, strategy)
        first.resume()
        is_sold = strategy == "naive" or units[strategy] == 2
        assert outcomes(*first.finish()) == {"order" if is_sold else "SoldOut": 1}, strategy
        audit, is_naive = audit_sale(sale=sale), strategy == "naive"
        assert (audit.oversold, audit.ok) == (int(is_naive), not is_naive), strategy
        refused = {"naive": 0, "fenced": 1, "conditional": int(has_token)}[strategy]
        assert audit.stale_writes_refused == refused, strategy


@pytest.mark.faults(row=1, xf=True)
@pytest.mark.parametrize(
    ("backend", "servers"),
    [
        ("redis", "redis_server"),
        ("database", "redis_server"),
        pytest.param("redlock", "redis_five", marks=pytest.mark.long),
        pytest.param("zookeeper", "zookeeper", marks=pytest.mark.long),
    ],
)
def test_row_1_stopped_between_read_and_write(processes, request, backend, servers) -> None:
    """The grant to the second one shows that the lease has ended."""
    request.getfixturevalue(servers)
    workers = processes(4)
    overlap(workers, backend, lambda: [late.pause() for late in workers[:3]])


@contextmanager
def workers_on(database_url: str, redis_url: str) -> Iterator[list[RaceWorker]]:
    """Four processes whose locks are on a private server."""
    with ExitStack() as stack:
        yield [stack.enter_context(RaceWorker(database_url, redis_url)) for _ in range(4)]


@pytest.mark.faults(row=4, backend="redis", xf=True)
def test_row_4_failover_to_a_replica_without_the_lock(database_url) -> None:
    with (
        Redis() as master,
        Redis(replica_of=master) as replica,
        Proxy(master.port) as address,
        redis.Redis.from_url(replica.url) as promoted,
        workers_on(database_url, f"redis://{address.url}/0") as workers,
    ):
        until(lambda: promoted.info("replication")["master_link_status"] == "up", "replication")
        promoted.replicaof("127.0.0.1", "1")  # cuts the replication

        def fail_over() -> None:
            master.kill()
            promoted.replicaof("NO", "ONE")
            address.redirect(replica.port)

        overlap(workers, "redis", fail_over)


@pytest.mark.faults(row=5, backend="redis", xf=True)
def test_row_5_redis_restarts_empty(database_url) -> None:
    with Redis() as server, workers_on(database_url, server.url) as workers:
        overlap(workers, "redis", lambda: (server.kill(), server.start()))
