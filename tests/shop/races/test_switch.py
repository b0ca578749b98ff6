"""The backend switched while real processes buy (F9, FAULTS row 25)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from django.db import connections

from inventory.models import StockMovement
from loadtest.servers import Redis
from locking import locks, policy
from locking.models import LockPolicyChange
from shop.audit import audit_sale
from shop.models import Order, Sale, User
from tests.locking.scripted import until
from tests.shop.making import a_customer, a_sale, put_in_force
from tests.shop.races.process import PATIENCE, TTL, Process, start_server, together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]


@pytest.fixture
def switching() -> Iterator[object]:
    """Switch in a thread of its own; the future knows when it is done."""
    with ThreadPoolExecutor(1) as pool:

        def work(**wish):
            try:
                return policy.switch(**wish)
            finally:
                connections.close_all()

        yield lambda **wish: pool.submit(work, **wish)


def a_form(sale: Sale, do: str = "buy") -> dict[str, object]:
    return {"do": do, "sale": sale.pk, "customer": a_customer().pk, "key": "k"}


def test_every_process_obeys_within_a_second(processes) -> None:
    put_in_force("none")
    policy.current()
    both = processes(2)
    for process in both:
        process.start({"do": "look_at_policy", "until": 2}, pause_at="looked")
    for process in both:
        process.reached()
        process.on()
    policy.switch(backend="redis", force=True)
    switched = time.monotonic()
    for process in both:
        (told,) = process.results()
        assert told["at"] - switched <= policy.MAX_AGE + 0.5  # the rest is the machine's


def test_a_drain_waits_for_a_holder_in_another_process(processes, switching) -> None:
    """It renews, so no time that is written anywhere says when it will be gone."""
    put_in_force("redis")
    holder, buyer = processes(2)
    holder.start({"do": "hold", "name": "sale:0"}, pause_at="holding")
    holder.reached()
    began = time.monotonic()
    done: Future = switching(backend="database")
    until(lambda: policy.current(0).draining, "the drain beginning")
    buyer.start({"do": "hold", "name": "sale:1"})
    until(
        lambda: time.monotonic() - began > policy.MAX_AGE + TTL + 0.5, "the longest lease passing"
    )
    assert not done.done()
    assert buyer.is_silent(0)
    holder.on()
    (held,) = holder.results()
    assert (held["backend"], held["epoch"], held["lost"]) == ("redis", 1, False)
    assert done.result(PATIENCE).backend == "database"
    (bought,) = buyer.results()
    assert (bought["backend"], bought["epoch"]) == ("database", 2)


def test_a_killed_holder_holds_a_drain_up_for_its_lease_only(processes, switching) -> None:
    put_in_force("redis")
    (holder,) = processes(1)
    holder.start({"do": "hold", "name": "sale:0"}, pause_at="holding")
    holder.reached()
    holder.kill()
    assert switching(backend="database").result(PATIENCE).backend == "database"
    assert LockPolicyChange.objects.get().drained_ms < (policy.MAX_AGE + TTL + 1) * 1000


@pytest.mark.parametrize(
    ("discipline", "force", "oversold"),
    [
        ("naive", True, 1),  # the control: what force gives up, and the fence gives back
        ("naive", False, 0),
        ("fenced", True, 0),
        ("conditional", True, 0),
    ],
)
@pytest.mark.parametrize("way", [("redis", "database"), ("database", "redis")])
def test_a_holder_between_look_and_write(
    processes, switching, discipline, force, oversold, way
) -> None:
    old, new = way
    put_in_force(old, discipline)
    sale = a_sale(stock=1)
    first, second = processes(2)
    first.start(a_form(sale), pause_at="purchase.check")
    first.reached()
    done = switching(backend=new, force=force)
    if force:
        done.result(PATIENCE)
        second.start(a_form(sale))
        assert "order" in second.results()[0]
        first.on()
    else:
        until(lambda: policy.current(0).draining, "the drain beginning")
        second.start(a_form(sale))
        assert second.is_silent(policy.MAX_AGE + 0.2)
        first.on()
    (told,) = first.results()
    assert ("order" in told) is (not force or bool(oversold))
    if not force:
        assert second.results()[0]["error"] == "SoldOut"
        assert done.result(PATIENCE).backend == new
    audit = audit_sale(sale=sale)
    assert (audit.oversold, audit.ok) == (oversold, not oversold)


@pytest.mark.parametrize(
    ("discipline", "refused"), [("naive", 0), ("fenced", 1), ("conditional", 1)]
)
def test_a_process_with_an_old_policy_is_refused_by_the_epoch(
    processes, discipline, refused
) -> None:
    """Forced, nobody waits for it: it takes the old backend's lock beside a buyer of the new."""
    put_in_force("redis", discipline)
    sale = a_sale(stock=5)
    late, other = processes(2)
    late.start(a_form(sale, "buy_on_an_old_policy"), pause_at="looked")
    late.reached()
    policy.switch(backend="database", force=True)
    other.start(a_form(sale))
    assert "order" in other.results()[0]
    late.on()
    assert "order" in late.results()[0]
    audit = audit_sale(sale=sale)
    assert audit.ok
    assert audit.stale_writes_refused == refused
    late_line = StockMovement.objects.filter(reason="reserved").last()
    assert late_line.fence_epoch == 1 + refused


def start_a_crowd(crowd: list[Process], *, stock: int, each: int) -> Sale:
    """Two buyers at a time in each process, one after the other."""
    sale = a_sale(stock=stock)
    names = [User(username=f"crowd-{number}") for number in range(len(crowd) * 2 * each)]
    User.objects.bulk_create(names)
    customers = list(
        User.objects.filter(username__startswith="crowd-").values_list("pk", flat=True)
    )
    for process in crowd:
        calls = []
        for _ in range(2):
            mine, customers = customers[:each], customers[each:]
            calls.append({"do": "buy_in_turn", "sale": sale.pk, "customers": mine})
        process.prepare(*calls)
    together(*crowd)
    return sale


def sold_under(epoch: int) -> int:
    return StockMovement.objects.filter(reason="reserved", fence_epoch=epoch).count()


@pytest.mark.parametrize(("discipline", "force"), [("naive", False), ("fenced", True)])
def test_switched_there_and_back_under_load(processes, discipline, force) -> None:
    put_in_force("redis", discipline)
    crowd = processes(4)
    sale = start_a_crowd(crowd, stock=150, each=20)
    for epoch, target in enumerate(("database", "redis"), start=1):
        until(lambda epoch=epoch: sold_under(epoch) >= 15, f"sales under epoch {epoch}")
        policy.switch(backend=target, force=force)
    assert Order.objects.count() < 150, "the fault did not fire: it was sold out before"
    bought = sum(result["bought"] for process in crowd for result in process.results())
    audit = audit_sale(sale=sale)
    assert audit.ok, audit.breaches
    assert (bought, audit.held, audit.available) == (150, 150, 0)
    assert sold_under(3) > 0


def test_away_from_a_dead_backend_under_load(database_url) -> None:
    """Redis is killed in mid-sale; buyers are told to try again until staff force the switch."""
    put_in_force("redis", "fenced")
    start_server(database_url)
    with Redis() as redis:
        crowd = [Process(redis.url) for _ in range(2)]
        try:
            sale = start_a_crowd(crowd, stock=50, each=15)
            until(lambda: sold_under(1) >= 10, "sales on the old backend")
            redis.kill()
            policy.switch(backend="database", force=True)
            assert Order.objects.count() < 50, "the fault did not fire: it was sold out before"
            bought = sum(result["bought"] for process in crowd for result in process.results())
        finally:
            for process in crowd:
                process.close()
    audit = audit_sale(sale=sale)
    assert audit.ok, audit.breaches
    assert (bought, audit.held) == (50, 50)
    assert LockPolicyChange.objects.get().forced
    assert not [held for held in locks["database"].inspect() if held.name == f"sale:{sale.pk}"]
