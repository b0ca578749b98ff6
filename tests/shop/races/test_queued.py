"""Queued sales in real processes: sold exactly, written once, whichever process dies."""

from contextlib import ExitStack
from functools import partial

import pytest

from devservers import Redis
from devservers.faults import waiting
from shop.administration.audit import audit_sale
from shop.models import CustomerQuota, Order, RejectedReservation, Sale, User
from shop.reservations import store
from shop.reservations.reconciliation import load, reconcile
from tests.shop.making import a_sale, fresh, put_in_force
from tests.shop.queued import ask, assert_sound, status
from tests.shop.races.race_worker import (
    TIMEOUT,
    RaceWorker,
    a_form,
    at_once,
    end_leases,
    outcomes,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]

until = partial(waiting.until, seconds=TIMEOUT)


def a_queued_sale(**what: int) -> Sale:
    sale = a_sale(fulfilment=Sale.Fulfilment.QUEUED, **what)
    load(sale=sale)
    return fresh(sale)


@pytest.mark.parametrize(("backend", "strategy"), [("redis", "naive"), ("none", "conditional")])
def test_concurrent_customers_get_every_unit_once(processes, backend, strategy) -> None:
    """Two consumers write while two processes sell; naive relies on the lock alone."""
    put_in_force(backend, strategy)
    sale = a_queued_sale(stock=30)
    *sellers, first, second = processes(4)
    for consumer in (first, second):
        consumer.start({"do": "consume"})
    told = at_once(sellers, [a_form(sale) for _ in range(60)])
    assert outcomes(*told) == {"order": 30, "SoldOut": 30}
    until(lambda: Order.objects.filter(sale=sale).count() == 30, "all orders")
    for consumer in (first, second):
        consumer.finish()
    assert_sound(sale, held=30, left=0)


def test_consumer_without_a_lock_loses_naive_writes(processes) -> None:
    """The control without the lock: another order is written after the consumer read the stock."""
    put_in_force("none", "naive")
    sale = a_queued_sale(stock=10)
    consumer, other = processes(2)
    ask(sale)
    consumer.run_until("stock.read", {"do": "consume"})
    assert outcomes(*other.run({**a_form(sale), "do": "buy"})) == {"order": 1}
    consumer.proceed()
    until(lambda: Order.objects.filter(sale=sale).count() == 2, "both orders")
    consumer.results()
    audit = audit_sale(sale=sale)
    assert (audit.held, audit.available, audit.ok) == (2, 9, False)


# Where a consumer is killed: what is in the database and in the stream then.
STEPS = {"queued.read": (0, 3), "queued.committed": (3, 3), "queued.settled": (3, 0)}


@pytest.mark.faults(row=20, backend="all")
@pytest.mark.parametrize("step", STEPS)
def test_batch_of_a_killed_consumer_is_written_once(processes, step) -> None:
    put_in_force("database")
    sale = a_queued_sale(stock=5)
    killed, heir = processes(2)
    queued = [ask(sale) for _ in "abc"]
    killed.run_until(step, {"do": "consume"})
    killed.kill()
    end_leases("database")
    written = Order.objects.filter(sale=sale).count()
    assert (written, store.backlog(sale=sale)) == STEPS[step]
    heir.start({"do": "consume"})
    until(lambda: not store.backlog(sale=sale), "the heir")
    assert "ok" in heir.finish()[0]
    for one in queued:
        assert status(one) == "won"
    assert_sound(sale, held=3, left=2)


@pytest.mark.faults(row=20, backend="database")
def test_batch_is_decided_twice_without_the_check(processes) -> None:
    """The control: the next consumer does not check, so a written reservation is rejected."""
    put_in_force("database")
    sale = a_queued_sale(stock=5)
    killed, heir = processes(2)
    ask(sale)
    killed.run_until("queued.committed", {"do": "consume"})
    killed.kill()
    end_leases("database")
    ask(sale)  # its order shows the consumer that the database accepts orders
    heir.start({"do": "consume"}, without=["shop.reservations.order_writer.decided_in"])
    until(lambda: not store.backlog(sale=sale), "the heir")
    heir.finish()
    rejected = RejectedReservation.objects.get()
    assert Order.objects.filter(number=rejected.number).exists()
    assert audit_sale(sale=fresh(sale)).ok


@pytest.mark.faults(row=5, backend="redis")
def test_sale_is_exact_while_its_redis_is_killed_and_recovers(database_url, settings) -> None:
    """With an append-only file that is written at once, no acknowledged reservation is lost."""
    put_in_force("database")
    attempts = 600
    with ExitStack() as ending:
        config = "--appendonly", "yes", "--appendfsync", "always"
        redis = ending.enter_context(Redis(config=config))
        settings.REDIS_URL = settings.QUEUE_REDIS_URL = redis.url
        sale = a_queued_sale(stock=attempts // 2, limit=2)
        names = [f"buyer-{sale.pk}-{number}" for number in range(attempts // 4)]
        User.objects.bulk_create([User(username=name) for name in names], batch_size=500)
        customers = User.objects.filter(username__startswith=f"buyer-{sale.pk}-")
        forms = [(pk, key) for key in "abac" for pk in customers.values_list("pk", flat=True)]
        consumer, *sellers = (RaceWorker(database_url, redis.url) for _ in range(3))
        for worker in (consumer, *sellers):
            ending.callback(worker.close)
        consumer.start({"do": "consume"})
        for place, seller in enumerate(sellers):
            calls = [{"sale": sale.pk, "forms": forms[place + at :: 8]} for at in (0, 2, 4, 6)]
            seller.start(*({"do": "reserve_all", **call} for call in calls))
        orders = Order.objects.filter(sale=sale)
        until(lambda: orders.count() >= attempts // 20, "the first orders")
        redis.kill()
        redis.start()
        for seller in sellers:
            seller.proceed()
        told = [result for seller in sellers for result in seller.results()]
        assert all("error" not in result for result in told), told
        assert sum(result["refused"] for result in told), "no form was sent to the killed server"
        until(lambda: not store.backlog(sale=fresh(sale)), "the rest")
        assert "ok" in consumer.finish()[0]
        numbers = {number for result in told for number in result["numbers"]}
        assert numbers == set(orders.values_list("number", flat=True))
        assert not CustomerQuota.objects.filter(sale=sale, taken__gt=2).exists()
        assert_sound(sale, held=attempts // 2, left=0)
        assert fresh(sale).generation == sale.generation, "it was not loaded again"


def test_reconciliation_during_purchases_counts_once(processes) -> None:
    """Reserved, unwritten and written units are each counted once."""
    put_in_force("redis")
    sale = a_queued_sale(stock=200)
    seller, consumer = processes(2)
    consumer.start({"do": "consume"})
    seller.start(*(a_form(sale) for _ in range(100)))
    drifts = [reconcile(sale=fresh(sale), thoroughly=True).drift for _ in range(20)]
    assert outcomes(*seller.results()) == {"order": 100}
    assert set(drifts) == {0}
    until(lambda: Order.objects.filter(sale=sale).count() == 100, "all orders")
    consumer.finish()
    assert_sound(sale, held=100, left=100)
