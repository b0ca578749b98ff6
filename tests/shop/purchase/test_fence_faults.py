"""FAULTS rows 1, 4 and 5: two holders of one lock, and the effect on the stock.

XF: in each, a second buyer gets the last unit under a lock that the first, between read and write,
still believes to hold. naive is the control and sells it twice; fenced and conditional do not.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis

from devservers import Redis
from devservers.faults.proxy import Proxy
from devservers.faults.waiting import until
from loadtest.kernel.history import Event, dump, history
from loadtest.kernel.judges import Promise, Run, facts
from locking import locks
from shop.models import Sale
from shop.sales.stock_lock import lock_name
from tests.fault_rows import audit_sale, judge
from tests.shop.late_buyer import TTL, LateBuyer
from tests.shop.making import a_customer, a_sale, put_in_force

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]


@pytest.fixture(scope="module")
def buyers(
    test_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[LateBuyer]]:
    """Four processes of the shop."""
    folder = tmp_path_factory.mktemp("buyers")
    with ExitStack() as stack:
        yield [stack.enter_context(LateBuyer(test_database_url, folder)) for _ in range(4)]


def overlap(
    buyers: list[LateBuyer],
    backend: str,
    *,
    fault: str,
    inject: Callable[[], object] = lambda: None,
    recover: Callable[[], object] = lambda: None,
) -> None:
    """Inject the fault into three holders, one per strategy, while another customer buys."""
    *late, second = buyers
    has_token = locks[backend].capabilities.fencing
    # Where a token alone can refuse the late write, nothing else may: there is a unit left.
    units = {"naive": 1, "fenced": 1, "conditional": 1 + has_token}
    held: list[tuple[str, LateBuyer, Sale, list[int]]] = []
    for (strategy, stock), first in zip(units.items(), late, strict=True):
        put_in_force(backend, strategy)
        sale, customers = a_sale(stock=stock), [a_customer().pk, a_customer().pk]
        first.buy(sale, customers[0], fault=fault)
        first.wait_for_fault()
        held.append((strategy, first, sale, customers))
    for strategy, _, sale, customers in held:
        inject()
        put_in_force(backend, strategy)
        second.buy(sale, customers[1])
        assert "order" in second.receive(), "the lock was still held: the fault did not fire"
    recover()
    for strategy, first, sale, customers in held:
        put_in_force(backend, strategy)
        first.end_fault()
        is_naive, is_left = strategy == "naive", units[strategy] == 2
        told = first.receive()
        assert told.get("error") == (None if is_naive or is_left else "sold_out"), strategy
        audit = audit_sale(sale=sale)
        assert (audit.oversold, audit.ok) == (int(is_naive), not is_naive), strategy
        events = history_of(sale, customers, first.folder)
        run = Run(events, dump(sale), Promise(exclusive=False, fencing=has_token))
        found = judge(run)
        assert bool(found) == is_naive, found
        assert facts(run)["overlaps"], "XF: only one believed that it held the lock"
        refused = {"naive": 0, "fenced": 1, "conditional": int(has_token)}[strategy]
        assert audit.stale_writes_refused == refused, strategy


def history_of(sale: Sale, customers: list[int], folder: Path) -> list[Event]:
    """Return the events of one sale."""
    wanted: dict[str, list[object]] = {"name": [lock_name(sale.pk)], "user": [*customers]}
    return [
        event
        for event in history(folder)
        if all(event[key] in values for key, values in wanted.items() if key in event)
    ]


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
def test_row_1_stopped_between_read_and_write(
    request: pytest.FixtureRequest, buyers: list[LateBuyer], backend: str, servers: str
) -> None:
    request.getfixturevalue(servers)
    stopped = time.monotonic()

    def past_twice_the_lease() -> None:
        until(lambda: time.monotonic() - stopped > 2 * TTL, "twice the lease passing")

    overlap(buyers, backend, fault="stop", recover=past_twice_the_lease)


@contextmanager
def served_by(buyers: list[LateBuyer], server: Redis, url: str = "") -> Iterator[None]:
    """Put the locks of Redis on a private server, with leases that outlast the test."""
    before = {"LOCATION": locks["redis"].backend.location, "TTL": TTL}
    with server:
        for buyer in buyers:
            buyer.locks(redis={"LOCATION": url or server.url, "TTL": 30.0})
        yield
        for buyer in buyers:
            buyer.locks(redis=before)


@pytest.mark.faults(row=4, backend="redis", xf=True)
def test_row_4_failover_to_a_replica_without_the_lock(buyers: list[LateBuyer]) -> None:
    """F3."""
    master = Redis()
    replica = Redis(replica_of=master)
    with (
        Proxy(master.port) as address,
        served_by(buyers, master, f"redis://{address.url}/0"),
        replica,
        redis.Redis.from_url(replica.url) as promoted,
    ):
        until(lambda: promoted.info("replication")["master_link_status"] == "up", "replication")
        promoted.replicaof("127.0.0.1", "1")  # cuts the replication

        def fail_over() -> None:
            if master.is_running:
                master.kill()
                promoted.replicaof("NO", "ONE")
                address.redirect(replica.port)

        overlap(buyers, "redis", fault="wait", inject=fail_over)


@pytest.mark.faults(row=5, backend="redis", xf=True)
def test_row_5_redis_restarts_empty(buyers: list[LateBuyer]) -> None:
    server = Redis()

    def crash() -> None:
        server.kill()
        server.start()

    with served_by(buyers, server):
        overlap(buyers, "redis", fault="wait", inject=crash)
