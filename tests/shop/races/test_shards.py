"""A queued sale over three Redis servers, in real processes: sold exactly, whichever dies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from devservers import Redis
from devservers.faults import waiting
from shop.errors import SoldOut
from shop.models import CustomerQuota, Order, Sale, User
from shop.reservations import store
from shop.reservations.reconciliation import load, reconcile
from shop.reservations.shards import home_of, shards_of
from tests.fault_rows import audit_sale
from tests.shop.making import a_customer, fresh, put_in_force
from tests.shop.queued import a_queued_sale, ask, assert_sound, status, told
from tests.shop.races.race_worker import TIMEOUT, RaceWorker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]

LIMIT = 2
THREADS = 4
FORMS = ("a", "b", "a", "c", "b")
"""Keys that each customer sends: two within the limit, both twice, and one beyond."""


@pytest.fixture
def workers(database_url: str, shards: list[Redis]) -> Iterator[Callable[[int], list[RaceWorker]]]:
    """Yield a function that starts processes of the shop with these shards."""
    mine: list[RaceWorker] = []

    def start(number: int) -> list[RaceWorker]:
        urls = [shard.url for shard in shards]
        mine.extend(RaceWorker(database_url, queue_urls=urls) for _ in range(number))
        return mine[-number:]

    yield start
    for worker in mine:
        worker.close()


def a_customer_of(sale: Sale, number: int) -> User:
    """Return a new customer whose home is that shard."""
    while True:
        customer = a_customer()
        if home_of(sale, customer.pk).number == number:
            return customer


@pytest.mark.faults(row=20, backend="redis")
@pytest.mark.parametrize(("step", "missing"), [("queued.taken", 2), ("queued.given", 0)])
def test_units_of_a_killed_move_are_sold(workers, step, missing) -> None:
    """A process moves units to an empty shard and is killed before or after it has given them."""
    put_in_force("redis")
    sale = a_queued_sale(stock=6)
    load(sale=sale)
    for _ in "ab":
        ask(sale, a_customer_of(sale, 0))
    customer = a_customer_of(sale, 0)
    (killed,) = workers(1)
    form = {"do": "reserve", "sale": sale.pk, "customer": customer.pk, "key": "k"}
    killed.run_until(step, form)
    killed.kill()
    audit = audit_sale(sale=fresh(sale))
    assert (audit.reserved, audit.drift) == (2, -missing), "nothing is reserved for the customer"
    assert store.left(sale=fresh(sale)) == 4 - missing
    assert reconcile(sale=fresh(sale)).drift == -missing
    queued = ask(sale, customer)
    assert told(sale, 4) == {"queued": 3, "SoldOut": 1}
    assert status(queued) == "waiting"
    assert not reconcile(sale=fresh(sale), thoroughly=True)


def test_units_of_a_killed_move_are_withheld_until_the_comparison(workers) -> None:
    """The control: without the comparison, the units in no shard stay unsold."""
    put_in_force("redis")
    sale = a_queued_sale(stock=3)
    load(sale=sale)
    ask(sale, a_customer_of(sale, 0))
    (killed,) = workers(1)
    customer = a_customer_of(sale, 0)
    form = {"do": "reserve", "sale": sale.pk, "customer": customer.pk, "key": "k"}
    killed.run_until("queued.taken", form)
    killed.kill()
    with pytest.raises(SoldOut):
        ask(sale, customer)
    audit = audit_sale(sale=fresh(sale))
    assert (audit.available, audit.reserved, audit.drift) == (3, 1, -2)


@pytest.mark.faults(row=5, backend="redis")
@pytest.mark.parametrize("attempts", [1_500, pytest.param(100_000, marks=pytest.mark.long)])
def test_sale_is_exact_while_a_shard_is_killed_and_recovers(workers, shards, attempts) -> None:
    put_in_force("redis")
    stock = attempts // 4
    sale = a_queued_sale(stock=stock, limit=LIMIT)
    load(sale=sale)
    names = [f"buyer-{sale.pk}-{number}" for number in range(attempts // len(FORMS))]
    User.objects.bulk_create([User(username=name) for name in names], batch_size=500)
    customers = User.objects.filter(username__in=names[:1]).values_list("pk", flat=True)
    customers = User.objects.filter(pk__gte=customers[0]).values_list("pk", flat=True)
    forms = [(customer, key) for customer in customers for key in FORMS]
    random.Random(attempts).shuffle(forms)
    consumer, *sellers = workers(3)
    consumer.start({"do": "consume"})
    total = len(sellers) * THREADS
    for place, seller in enumerate(sellers):
        calls = [
            {"do": "reserve_all", "slug": sale.slug, "forms": forms[part::total]}
            for part in range(place * THREADS, (place + 1) * THREADS)
        ]
        seller.start(*calls)
    seconds = TIMEOUT + attempts / 100
    until = partial(waiting.until, seconds=seconds)
    written = Order.objects.filter(sale=sale).count
    until(lambda: written() >= stock * 0.05, "the first orders")
    shards[1].kill()
    until(lambda: written() >= stock * 0.4, "orders of the other shards")
    shards[1].start()
    results = [result for seller in sellers for result in seller.results(seconds)]
    assert all("error" not in result for result in results), results
    answers = sum((Counter(result["answers"]) for result in results), Counter())
    assert answers["ServiceUnavailable"], "no form was sent to the killed shard"
    assert answers["LimitReached"]
    until(lambda: not store.backlog(sale=fresh(sale)), "the last orders")
    assert "ok" in consumer.finish()[0]
    numbers = {number for result in results for number in result["numbers"]}
    assert numbers == set(Order.objects.filter(sale=sale).values_list("number", flat=True))
    assert len(numbers) == stock
    assert CustomerQuota.objects.filter(sale=sale, taken__gt=LIMIT).count() == 0
    assert all(shard.generation > 0 for shard in shards_of(fresh(sale)))
    assert_sound(sale, held=stock, left=0)
