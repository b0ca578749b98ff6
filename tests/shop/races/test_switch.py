"""The backend switched while real processes buy (F9, FAULTS row 25)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from django.db import connections

from devservers import Redis
from devservers.faults.waiting import until
from inventory.models import StockMovement
from locking import locks, policy
from locking.models import LockPolicyChange
from shop.models import Sale
from tests.fault_rows import SLACK, audit_sale
from tests.shop.making import a_customer, a_sale, put_in_force
from tests.shop.races.race_worker import TIMEOUT, TTL, RaceWorker, together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]


@pytest.fixture
def switching() -> Iterator[object]:
    """Switch in another thread, and return its future."""
    with ThreadPoolExecutor(1) as pool:

        def work(**wish):
            try:
                return policy.switch(**wish)
            finally:
                connections.close_all()

        yield lambda **wish: pool.submit(work, **wish)


def a_form(sale: Sale, do: str = "buy") -> dict[str, object]:
    return {"do": do, "sale": sale.pk, "customer": a_customer().pk, "key": "k"}


def test_every_process_follows_a_switch_within_a_second(processes) -> None:
    put_in_force("none")
    policy.current()
    both = processes(2)
    for process in both:
        process.start({"do": "look_at_policy", "until": 2}, pause_at="looked")
    for process in both:
        process.reached()
        process.proceed()
    policy.switch(backend="redis", force=True)
    switched = time.monotonic()
    for process in both:
        (told,) = process.results()
        assert told["at"] - switched <= policy.MAX_AGE + 0.5  # the rest is the machine's


def test_drain_waits_for_a_holder_in_another_process(processes, switching) -> None:
    """The holder renews its lease, so no stored time limits the drain. Other names go on."""
    put_in_force("redis")
    holder, buyer, other = processes(3)
    holder.run_until("holding", {"do": "hold", "name": "sale:0"})
    began = time.monotonic()
    done: Future = switching(backend="database")
    until(lambda: policy.current(0).draining, "the drain beginning")
    buyer.start({"do": "hold", "name": "sale:0"})
    (bought,) = other.run({"do": "hold", "name": "sale:1"})
    assert (bought["backend"], bought["epoch"]) == ("database", 2)
    longest = policy.MAX_AGE + TTL + 0.5
    until(lambda: time.monotonic() - began > longest, "the longest lease passing")
    assert not done.done()
    assert buyer.is_silent(0)
    (held,) = holder.finish()
    assert (held["backend"], held["epoch"], held["lost"]) == ("redis", 1, False)
    assert done.result(TIMEOUT).backend == "database"
    (bought,) = buyer.results()
    assert (bought["backend"], bought["epoch"]) == ("database", 2)


def test_killed_holder_delays_a_drain_by_its_lease_only(processes, switching) -> None:
    put_in_force("redis")
    (holder,) = processes(1)
    holder.run_until("holding", {"do": "hold", "name": "sale:0"})
    holder.kill()
    assert switching(backend="database").result(TIMEOUT).backend == "database"
    assert LockPolicyChange.objects.get().drained_ms < (policy.MAX_AGE + TTL + 1 + SLACK) * 1000


@pytest.mark.faults(row=25, xf=True, fired="switched")
@pytest.mark.parametrize(
    ("strategy", "force", "oversold"),
    [
        ("naive", True, 1),  # the control: what force gives up, and the fence gives back
        ("naive", False, 0),
        ("fenced", True, 0),
        ("conditional", True, 0),
    ],
)
@pytest.mark.parametrize("way", [("redis", "database"), ("database", "redis")])
def test_switch_with_a_holder_between_read_and_write(
    processes, switching, strategy, force, oversold, way
) -> None:
    old, new = way
    put_in_force(old, strategy)
    sale = a_sale(stock=1)
    first, second = processes(2)
    first.run_until("stock.read", a_form(sale))
    done = switching(backend=new, force=force)
    if force:
        done.result(TIMEOUT)
        assert "order" in second.run(a_form(sale))[0]
    else:
        until(lambda: policy.current(0).draining, "the drain beginning")
        second.start(a_form(sale))
        assert second.is_silent(policy.MAX_AGE + 0.2)
    (told,) = first.finish()
    assert ("order" in told) is (not force or bool(oversold))
    if not force:
        assert second.results()[0]["error"] == "SoldOut"
        assert done.result(TIMEOUT).backend == new
    audit = audit_sale(sale=sale)
    assert (audit.oversold, audit.ok) == (oversold, not oversold)


@pytest.mark.parametrize(("strategy", "refused"), [("naive", 0), ("fenced", 1), ("conditional", 1)])
def test_epoch_refuses_a_process_with_an_old_policy(processes, strategy, refused) -> None:
    """A forced switch does not wait: it acquires the old lock beside a holder of the new one."""
    put_in_force("redis", strategy)
    sale = a_sale(stock=5)
    late, other = processes(2)
    late.run_until("looked", a_form(sale, "buy_on_an_old_policy"))
    policy.switch(backend="database", force=True)
    assert "order" in other.run(a_form(sale))[0]
    assert "order" in late.finish()[0]
    audit = audit_sale(sale=sale)
    assert (audit.ok, audit.stale_writes_refused) == (True, refused)
    late_line = StockMovement.objects.filter(reason="reserved").last()
    assert late_line.fence_epoch == 1 + refused


def start_a_crowd(crowd: list[RaceWorker]) -> Sale:
    """Buy in two threads of each process until stopped."""
    sale = a_sale(stock=30_000)
    for process in crowd:
        process.prepare(*[{"do": "buy_until_told", "sale": sale.pk}] * 2)
    together(*crowd)
    return sale


def end(crowd: list[RaceWorker], sale: Sale) -> None:
    """Expect an order for each success, and a consistent sale."""
    results = [result for process in crowd for result in process.finish()]
    assert not [result for result in results if "error" in result]
    audit = audit_sale(sale=sale)
    assert audit.ok, audit.breaches
    assert audit.held == sum(result["bought"] for result in results)


def sold_under(epoch: int) -> int:
    return StockMovement.objects.filter(reason="reserved", fence_epoch=epoch).count()


@pytest.mark.faults(row=25, backend="redis, database", fired="switched twice")
@pytest.mark.parametrize(("strategy", "force"), [("naive", False), ("fenced", True)])
def test_switch_there_and_back_under_load(processes, strategy, force) -> None:
    put_in_force("redis", strategy)
    crowd = processes(4)
    sale = start_a_crowd(crowd)
    for epoch, target in enumerate(("database", "redis"), start=1):
        until(lambda epoch=epoch: sold_under(epoch) >= 15, f"sales under epoch {epoch}")
        policy.switch(backend=target, force=force)
    until(lambda: sold_under(3) >= 15, "sales under the last epoch")
    end(crowd, sale)


def test_process_lock_loses_writes_of_several_processes(processes) -> None:
    """The control: the same load with a lock that does not span processes."""
    put_in_force("process", "naive")
    crowd = processes(4)
    sale = start_a_crowd(crowd)
    until(lambda: not audit_sale(sale=sale).ok, "a lost write")
    for process in crowd:
        process.finish()


@pytest.mark.faults(row=25, backend="redis to database", fired="switched by force")
def test_forced_switch_from_a_dead_backend_under_load(database_url) -> None:
    """Redis is killed during a sale; purchases are overloaded until a forced switch."""
    put_in_force("redis", "fenced")
    with Redis() as redis:
        crowd = [RaceWorker(database_url, redis.url) for _ in range(2)]
        try:
            sale = start_a_crowd(crowd)
            until(lambda: sold_under(1) >= 10, "sales on the old backend")
            redis.kill()
            policy.switch(backend="database", force=True)
            until(lambda: sold_under(2) >= 10, "sales on the new backend")
            end(crowd, sale)
        finally:
            for process in crowd:
                process.close()
    assert LockPolicyChange.objects.get().forced
    assert not [held for held in locks["database"].inspect() if held.name == f"sale:{sale.pk}"]
