"""FAULTS rows 9 to 13 as buyers meet them: what they are told, then the checker and the audit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
import redis
from django.db import connections

from devservers import Redis, ZooKeeper
from devservers.faults.waiting import WAIT_TIMEOUT, until
from loadtest.kernel.judges import Promise
from locking import locks
from locking.backends.redis.pool import redis_breaker
from locking.backends.zookeeper.backend import ZooKeeperBackend
from locking.lease import LockStore
from shop.models import Order
from shop.sales.stock_lock import lock_name
from tests.devservers.faults.interception import ExpireSession, InterceptingProxy
from tests.fault_rows import audit_sale
from tests.loadtest.kernel.recorded import Shop, shop
from tests.shop.making import a_sale, put_in_force
from verification.histories.lock_models import Lock

__all__ = ["shop"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]

TTL = 1.0


@pytest.fixture
def in_force(shop: Shop, settings: Any) -> Callable[..., LockStore]:
    """Put a backend on servers of the test's own in force, recorded; others wait for its lease."""
    settings.LOCK_TIMEOUT = 3 * TTL
    settings.HARD_DEADLINE = 4 * TTL

    def put(alias: str, location: object, discipline: str = "fenced", **options: Any) -> LockStore:
        conf = settings.LOCKS[alias] | {"LOCATION": location, "TTL": TTL, "OPTIONS": options}
        settings.LOCKS = settings.LOCKS | {alias: conf}
        put_in_force(alias, discipline)
        shop.recorder.watch(locks[alias])
        shop.sale = a_sale(stock=3)
        return locks[alias]

    return put


def ends_with(shop: Shop, backend: LockStore, *, orders: int, overlaps: bool = False) -> None:
    """The history and the books are in order."""
    promise = Promise.of(backend.capabilities)
    findings = shop.findings(replace(promise, exclusive=promise.exclusive and not overlaps))
    assert findings.ok, findings.breaches
    assert shop.verdict(Lock(fenced=True)) == "legal"
    audit = audit_sale(sale=shop.sale)
    assert audit.ok, audit.breaches
    assert Order.objects.count() == audit.held == orders


@contextmanager
def another(act: Callable[[], str]) -> Iterator[Callable[[], str]]:
    """What one is told who acts beside the block; ask for it in the block."""

    def work() -> str:
        try:
            return act()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(work)
        yield lambda: told.result(WAIT_TIMEOUT)


@pytest.mark.faults(row=9, backend="redlock")
def test_row_9_two_masters_are_not_missed_and_three_are(
    shop: Shop, in_force: Callable[..., LockStore]
) -> None:
    with ExitStack() as stack:
        masters = [stack.enter_context(Redis()) for _ in range(5)]
        backend = in_force("redlock", [master.url for master in masters])
        for master in masters[:2]:
            master.kill()
        assert shop.buy() == "order"
        masters[2].kill()
        assert shop.buy() == "store_down"
        masters[2].start()
        until(lambda: shop.buy() == "order", "a purchase", WAIT_TIMEOUT)
        ends_with(shop, backend, orders=2)


@pytest.fixture
def far() -> Iterator[tuple[Redis, InterceptingProxy]]:
    with Redis() as server, InterceptingProxy(server.port) as proxy:
        yield server, proxy


@contextmanager
def seen_from_near(server: Redis, shop: Shop) -> Iterator[Callable[[], object]]:
    """Whether the sale's lock is held, by a connection that no fault strikes."""
    with redis.Redis.from_url(server.url) as direct:
        yield lambda: direct.exists(f"lock:{{{lock_name(shop.sale.pk)}}}")


@pytest.mark.faults(row=10, backend="redis")
def test_row_10_the_answer_of_a_grant_is_lost(
    shop: Shop, in_force: Callable[..., LockStore], far: tuple[Redis, InterceptingProxy]
) -> None:
    server, proxy = far
    backend = in_force("redis", f"redis://{proxy.url}/0")
    assert shop.buy() == "order"
    proxy.hold_replies()
    with seen_from_near(server, shop) as is_held, another(shop.buy) as told:
        until(is_held, "the grant")
        proxy.cut()
        proxy.resume()
        assert told() == "order"
        assert not is_held()
    ends_with(shop, backend, orders=2)


@pytest.mark.faults(row=11, backend="redis")
def test_row_11_a_purchase_is_granted_its_lock_long_after_it_gave_up(
    shop: Shop, in_force: Callable[..., LockStore], far: tuple[Redis, InterceptingProxy]
) -> None:
    """The release that follows the late acquire on the same connection frees the lock again."""
    server, proxy = far
    url = f"redis://{proxy.url}/0"
    backend = in_force("redis", url, SOCKET_TIMEOUT=1.0)
    clock = "lock:clock"
    with seen_from_near(server, shop) as is_held, redis.Redis.from_url(server.url) as direct:
        assert shop.buy() == "order"
        before = direct.get(clock)
        proxy.hold()
        assert shop.buy() == "store_down"
        assert direct.get(clock) == before
        proxy.resume()
        until(lambda: direct.get(clock) != before, "the late command arriving")
        until(lambda: not is_held(), "its withdrawal")
        until(lambda: not redis_breaker(url).is_open, "Redis being heard again")
        assert shop.buy() == "order"
    ends_with(shop, backend, orders=2)


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    with ZooKeeper(nodes=1) as ensemble:
        yield ensemble.hosts


@pytest.mark.faults(row=12, backend="zookeeper")
@pytest.mark.parametrize("discipline", ["naive", "fenced", "conditional"])
def test_row_12_the_session_of_a_buyer_expires(
    shop: Shop, in_force: Callable[..., LockStore], node: str, discipline: str
) -> None:
    """Another buys before the late write, which the row refuses; naive takes it."""
    backend = in_force("zookeeper", node, discipline, SESSION_TIMEOUT=2.0)

    def expire() -> None:
        assert isinstance(backend.backend, ZooKeeperBackend)
        assert backend.backend.session is not None
        fault = ExpireSession(node, backend.backend.session.client.client_id)
        fault.inject()
        assert fault.injected
        assert shop.buy() == "order"

    assert shop.buy_meanwhile(expire) == "order"
    if discipline == "naive":
        assert not audit_sale(sale=shop.sale).ok
    else:
        ends_with(shop, backend, orders=2, overlaps=True)
        assert audit_sale(sale=shop.sale).stale_writes_refused == 1


@pytest.mark.faults(row=13, backend="zookeeper")
def test_row_13_the_connection_is_lost_while_a_buyer_waits(
    shop: Shop, in_force: Callable[..., LockStore], node: str
) -> None:
    with InterceptingProxy(int(node.rpartition(":")[2])) as proxy:
        backend = in_force("zookeeper", proxy.url, SESSION_TIMEOUT=2.0)
        with ExitStack() as stack:
            waiting = []

            def lose() -> None:
                waiting.append(stack.enter_context(another(shop.buy)))
                until(lambda: [one.waiters for one in backend.inspect()] == [1], "the waiter")
                proxy.cut()

            assert shop.buy_meanwhile(lose) == "order"
            assert waiting[0]() == "order"
        assert backend.inspect() == []
        ends_with(shop, backend, orders=2)
        locks.close()
