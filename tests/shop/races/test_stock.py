"""Races of real processes for the last unit. Every guard has a control that oversells."""

import time
from collections import Counter

import pytest

from locking import policy
from shop.models import Sale
from shop.orders.service import cancel_order
from shop.purchase import tokens
from tests.fault_rows import SLACK, audit_sale
from tests.shop.making import a_customer, a_sale, put_in_force
from tests.shop.purchases import buy
from tests.shop.races.race_worker import TTL, at_once

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]


def a_form(sale: Sale, **what: object) -> dict[str, object]:
    return {"do": "buy", "sale": sale.pk, "customer": a_customer().pk, "key": "k", **what}


def outcomes(*results: dict) -> Counter[str]:
    return Counter(result.get("error", "order") for result in results)


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


@pytest.mark.parametrize(
    ("backend", "strategy"),
    [("database", "naive"), ("redis", "naive"), ("none", "fenced"), ("none", "conditional")],
)
def test_concurrent_customers_buy_exactly_the_stock(processes, backend, strategy) -> None:
    """Only the lock, or only the strategy, guards the stock."""
    put_in_force(backend, strategy)
    sale = a_sale(stock=10)
    told = at_once(processes(4), [a_form(sale) for _ in range(40)])
    assert outcomes(*told) == {"order": 10, "SoldOut": 30}
    audit = audit_sale(sale=sale)
    assert (audit.ok, audit.available, audit.held) == (True, 0, 10)


@pytest.mark.faults(row="F8", backend="redis", xf=True)
def test_lock_released_before_the_commit_oversells(processes) -> None:
    """Control for the order of steps in place_order: the same lock, released too early.

    Not with `database`: on SQLite its release would wait for the open transaction.
    """
    put_in_force("redis", "naive")
    sale = a_sale(stock=1)
    first, second = processes(2)
    forms = [a_form(sale, do="buy_releasing_early") for _ in range(2)]
    first.run_until("early.released", forms[0])
    # The lock lets the second in, and it reads what the first has not committed.
    second.run_until("early.looked", forms[1])
    first.finish()
    assert outcomes(*second.finish()) == {"order": 1}
    assert audit_sale(sale=sale).oversold == 1


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


@pytest.mark.faults(row=3)
@pytest.mark.parametrize("backend", ["database", "redis"])
def test_waiters_are_served_after_a_killed_holders_lease(processes, backend) -> None:
    put_in_force(backend, "naive")
    sale = a_sale(stock=2)
    victim, other = processes(2)
    victim.run_until("stock.read", a_form(sale))
    victim.kill()
    results = other.run(a_form(sale), a_form(sale))
    assert outcomes(*results) == {"order": 2}
    assert max(result["seconds"] for result in results) < TTL + 1 + SLACK
    audit = audit_sale(sale=sale)
    assert (audit.ok, audit.available, audit.held) == (True, 0, 2)


@pytest.mark.parametrize("is_control", [False, True], ids=["as it is", "control"])
@pytest.mark.parametrize(("what", "seconds"), [("stock", 0.1), ("token", 1), ("policy", 1)])
def test_every_process_learns_of_a_change_in_time(processes, what, seconds, is_control) -> None:
    """A request that long after the change sees it, however slow the machine is."""
    put_in_force("redis")
    sale = a_sale(stock=1)
    order = buy(sale).order
    changes = {
        "stock": (sale.slug, lambda: cancel_order(order=order)),
        "token": ("cookie", lambda: tokens.revoke_session("cookie")),
        "policy": ("none", lambda: policy.switch(backend="none", force=True)),
    }
    of, change = changes[what]
    three = processes(3)
    for process in three:
        remembers = 8.0 if is_control else None
        process.run_until(
            "watched", {"do": "watch", "what": what, "of": of, "remembers": remembers}
        )
    for process in three:
        process.proceed()
    change()
    changed = time.monotonic()
    lasts = [process.results()[0]["last"] - changed for process in three]
    assert (max(lasts) <= seconds) is not is_control
