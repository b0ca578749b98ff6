"""Races of real processes for the last unit, and for more while the lock is switched.

Every guard has a control that oversells. That of the order of release and COMMIT is the scenario
"release-before-commit"; "forced-switch" and "switch-under-load" switch the lock while one holder
has read the stock.
"""

import time
from collections import Counter
from collections.abc import Callable

import pytest

from devservers import Redis
from devservers.faults.waiting import until
from inventory.models import Stock, StockMovement
from locking import locks, policy
from locking.models import LockPolicy, LockPolicyChange
from shop.administration.audit import audit_sale
from shop.models import Sale
from shop.purchase import admission, tokens
from tests.shop.making import a_sale, put_in_force
from tests.shop.races.race_worker import RaceWorker, a_form, outcomes

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]


@pytest.mark.parametrize(
    ("backend", "strategy", "sold"),
    [
        ("none", "naive", 2),
        ("process", "naive", 2),
        ("none", "fenced", 1),
        ("none", "conditional", 1),
        ("process", "fenced", 1),
    ],
)
def test_two_processes_between_read_and_write(processes, backend, strategy, sold) -> None:
    """No lock spans both: naive is the control and sells the last unit twice."""
    put_in_force(backend, strategy)
    sale = a_sale(stock=1)
    both = processes(2)
    for process in both:
        process.run_until("stock.read", a_form(sale))
    results = [result for process in both for result in process.finish()]
    assert outcomes(*results) == Counter({"order": sold, "SoldOut": 2 - sold})
    audit = audit_sale(sale=sale)
    assert (audit.held, audit.oversold, audit.lost) == (sold, sold - 1, 0)
    assert audit.ok is (sold == 1)


@pytest.mark.faults(row="F8")
@pytest.mark.parametrize("backend", ["database", "redis"])
@pytest.mark.parametrize("point", ["stock.read", "stock.committed"])
def test_lock_is_held_from_the_read_to_the_commit(processes, backend, point) -> None:
    put_in_force(backend, "naive")
    sale = a_sale(stock=2)
    first, second = processes(2)
    first.run_until(point, a_form(sale))
    second.start(a_form(sale))
    assert second.is_silent(0.2), "it went past a lock that another process holds"
    assert outcomes(*first.finish(), *second.results()) == {"order": 2}
    audit = audit_sale(sale=sale)
    assert (audit.ok, audit.available, audit.held) == (True, 0, 2)


@pytest.mark.parametrize(("what", "seconds"), [("stock", 0.1), ("token", 1), ("policy", 1)])
def test_change_by_another_process_is_seen_in_time(what, seconds) -> None:
    """A request that long after the change sees it, however slow the machine is."""
    put_in_force("redis")
    sale = a_sale(stock=1)
    asks: dict[str, Callable[[], bool]] = {
        "stock": lambda: admission.cached_sale(slug=sale.slug).phase() == Sale.Phase.SOLD_OUT,
        "token": lambda: tokens.is_revoked(customer_id=0, session="cookie", issued_at=0),
        "policy": lambda: policy.current().backend == "none",
    }
    assert not asks[what](), "the control: what it remembers"
    # Without a signal, as if written elsewhere.
    Stock.objects.update(quantity=0)
    tokens.revoke_session("cookie")
    LockPolicy.objects.update(backend="none")
    changed = last = time.monotonic()

    def has_learned() -> bool:
        nonlocal last
        asked = time.monotonic()
        is_seen = asks[what]()
        last = last if is_seen else asked
        return is_seen

    until(has_learned)
    assert last - changed <= seconds


# --- the lock is switched while they buy --------------------------------------------------------


def start_a_crowd(crowd: list[RaceWorker]) -> Sale:
    """Buy in two threads of each process until stopped."""
    sale = a_sale(stock=30_000)
    for process in crowd:
        process.start(*[{"do": "buy_until_told", "sale": sale.pk}] * 2)
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
