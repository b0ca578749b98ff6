"""Late writes: of a holder that has lost its lock to another, and of a COMMIT without a reply.

Naive writes are the control and sell the last unit twice; fenced and conditional do not.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis
from django.db import connection

from devservers import Redis
from devservers.faults.proxy import Proxy
from devservers.faults.waiting import until
from locking import locks
from shop.administration.audit import audit_sale
from shop.models import Order
from tests.devservers.faults.interception import HeldRequest, InterceptingProxy
from tests.shop.making import a_customer, a_sale, fresh, put_in_force
from tests.shop.purchases import EVERY, buy
from tests.shop.races.race_worker import RaceWorker, a_form, end_leases, form_of, outcomes

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]

BOUND = 20.0
"""Seconds, on a loaded machine, within which a customer must have a response."""


def overlap(workers: list[RaceWorker], backend: str, inject: Callable[[], object]) -> None:
    """Inject the fault into three holders, one per strategy, while another customer buys (XF)."""
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
    request.getfixturevalue(servers)
    *late, _second = workers = processes(4)

    def stop() -> None:
        for one in late:
            one.pause()
        end_leases(backend)

    overlap(workers, backend, stop)


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


@pytest.fixture(scope="module")
def proxy() -> Iterator[InterceptingProxy]:
    with InterceptingProxy(int(connection.settings_dict["PORT"])) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def behind_proxy(proxy: InterceptingProxy, test_database_url: str) -> Iterator[RaceWorker]:
    """A process of the shop that gives up after two seconds without a reply."""
    port = connection.settings_dict["PORT"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATABASE_TIMEOUT", "2")
        worker = RaceWorker(test_database_url.replace(f":{port}/", f":{proxy.port}/"))
    yield worker
    worker.close()


def without_reply(
    worker: RaceWorker, proxy: InterceptingProxy, call: dict[str, Any]
) -> HeldRequest:
    """Have the worker write stock in a transaction that stays in the proxy."""
    table = connection.ops.quote_name("inventory_stockmovement")
    late = proxy.hold_request(containing=f"INSERT INTO {table}".encode())

    def is_held() -> bool:
        worker.start(dict(call))
        until(lambda: late.is_held.is_set() or not worker.is_silent(0), "the transaction", 60)
        if not late.is_held.is_set():
            worker.results()  # it was refused: the circuit breaker is open, or it was too late
        return late.is_held.is_set()

    until(is_held, "a transaction", 60)
    return late


@pytest.mark.only("mysql", "postgresql")
@EVERY
@pytest.mark.faults(row=26, backend="redis")
def test_row_26_late_commit_sells_no_unit_twice(processes, proxy, behind_proxy, strategy) -> None:
    """The lock is released with the 503. Naive is the control: it sells the last unit twice."""
    put_in_force("redis", strategy)
    sale = a_sale(stock=1)
    form = {**form_of(sale, a_customer()), "patient": False}
    late = without_reply(behind_proxy, proxy, form)
    (told,) = behind_proxy.results()
    assert (told["status"], told["seconds"] < BOUND) == (503, True), told
    (second,) = processes(1)
    assert "order" in second.run(a_form(sale))[0]
    assert late.deliver() > 0, "the connection was closed"
    is_naive = strategy == "naive"
    until(lambda: Order.objects.count() == 1 + is_naive, "the late order")
    audit = audit_sale(sale=sale)
    assert (audit.oversold, audit.ok) == ((1, False) if is_naive else (0, True))


@pytest.mark.only("mysql", "postgresql")
@EVERY
@pytest.mark.faults(row=26, backend="redis")
@pytest.mark.parametrize("act", ["cancel", "restock"])
def test_row_26_late_return_of_units_is_not_overwritten(
    processes, proxy, behind_proxy, act, strategy
) -> None:
    """It arrives between the read and the write of a purchase; naive overwrites it."""
    put_in_force("redis", strategy)
    sale = a_sale(stock=5)
    order = buy(sale).order
    calls = {
        "cancel": {"do": "cancel", "order": order.number},
        "restock": {"do": "restock", "sale": sale.pk, "quantity": 2},
    }
    late = without_reply(behind_proxy, proxy, calls[act])
    assert behind_proxy.results()[0]["error"] == "OutcomeUnknown"
    (second,) = processes(1)
    second.run_until("stock.read", a_form(sale))
    assert late.deliver() > 0, "the connection was closed"
    until(lambda: fresh(sale).stock.quantity > 4 or strategy == "fenced", "the late units")
    assert "order" in second.finish()[0]
    assert audit_sale(sale=sale).ok is (strategy != "naive")
