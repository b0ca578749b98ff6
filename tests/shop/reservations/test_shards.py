"""A queued sale over three Redis servers: its stock is divided, limits and keys stay exact."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import suppress
from unittest.mock import patch

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from devservers.faults.waiting import until
from shop.administration.sale_management import restock_sale
from shop.errors import BadInput, KeyReused, LimitReached, ServiceUnavailable, SoldOut
from shop.models import Order, RejectedReservation, Sale, User
from shop.orders.service import cancel_order
from shop.reservations import shares, store
from shop.reservations.reconciliation import declare_lost, load, reconcile
from shop.reservations.shards import home_of, shards_of
from tests.fault_rows import audit_sale
from tests.shop.making import a_customer, fresh, signed_in
from tests.shop.queued import a_queued_sale, ask, assert_sound, consume, status, told

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("shards")]


def a_customer_of(sale: Sale, number: int) -> User:
    """Return a new customer whose home is that shard."""
    while True:
        customer = a_customer()
        if home_of(fresh(sale), customer.pk).number == number:
            return customer


def states(sale: Sale) -> list[store.State]:
    """Return the units of every shard."""
    return [one for one in store.read_states(sale=fresh(sale)).values() if one]


def test_every_unit_is_sold_once() -> None:
    sale = a_queued_sale(stock=30)
    assert told(sale, 40) == {"queued": 30, "SoldOut": 10}
    assert [state.left for state in states(sale)] == [0, 0, 0]
    assert all(state.queued for state in states(sale)), "each shard has reservations"
    assert consume() == 30
    assert_sound(sale, held=30, left=0)
    assert told(sale, 1) == {"SoldOut": 1}


def test_units_do_not_move_without_the_loan() -> None:
    """The control: the customers of an empty shard are refused while others have units."""
    sale = a_queued_sale(stock=3)
    one, other = (a_customer_of(sale, 0) for _ in "ab")
    ask(sale, one)
    with (
        patch.object(shares, "reserve_from_others", return_value="sold_out"),
        pytest.raises(SoldOut),
    ):
        ask(sale, other)
    assert store.left(sale=fresh(sale)) == 2
    assert ask(sale, other)


def test_limit_and_key_stay_exact_with_units_of_other_shards() -> None:
    sale = a_queued_sale(stock=9, limit=5)
    customer = a_customer_of(sale, 1)
    first = ask(sale, customer, quantity=5)
    assert ask(sale, customer, quantity=5).receipt == first.receipt
    for form, error in (({"quantity": 4}, KeyReused), ({"key": "other"}, LimitReached)):
        with pytest.raises(error):
            ask(sale, customer, **form)
    assert store.left(sale=fresh(sale)) == 4
    consume()
    again = ask(sale, customer, quantity=5)
    assert (again.replayed, status(again)) == (True, "won")
    assert_sound(sale, held=5, left=4)


def test_last_units_of_several_shards_serve_one_customer() -> None:
    sale = a_queued_sale(stock=3)
    assert [state.left for state in _loaded(sale)] == [1, 1, 1]
    assert ask(sale, a_customer_of(sale, 2), quantity=3)
    assert told(sale, 3) == {"SoldOut": 3}


def _loaded(sale: Sale) -> list[store.State]:
    load(sale=sale)
    return states(sale)


def test_units_of_a_cancelled_order_reach_the_other_shards() -> None:
    sale = a_queued_sale(stock=3)
    customer = a_customer_of(sale, 0)
    ask(sale, customer, quantity=3)
    consume()
    assert told(sale, 1) == {"SoldOut": 1}
    cancel_order(order=Order.objects.select_related("sale").get())
    assert [state.left for state in states(sale)] == [3, 0, 0]
    for number in (1, 2, 1):
        ask(sale, a_customer_of(sale, number))
    consume()
    assert_sound(sale, held=3, left=0)


def test_restocked_units_are_divided() -> None:
    sale = a_queued_sale(stock=3)
    load(sale=sale)
    restock_sale(sale=fresh(sale), quantity=30)
    assert [state.left for state in states(sale)] == [11, 11, 11]
    assert_sound(sale, held=0, left=33)


@pytest.mark.parametrize("units", [7, -7])
def test_comparison_makes_the_shares_add_up(units) -> None:
    sale = a_queued_sale(stock=12)
    ask(sale)
    shard = shards_of(fresh(sale))[1]
    before = store.read_state(shard=shard)
    store.set_stock(shard=shard, quantity=before.stock + units)
    assert audit_sale(sale=fresh(sale)).drift == units
    assert reconcile(sale=fresh(sale)).drift == units
    assert told(sale, 12) == {"queued": 11, "SoldOut": 1}
    consume()
    assert_sound(sale, held=12, left=0)


@pytest.mark.faults(row=5, backend="redis")
def test_emptied_shard_alone_is_loaded_again(shards) -> None:
    sale = a_queued_sale(stock=12)
    written = ask(sale, a_customer_of(sale, 1))
    consume()
    lost, kept = (ask(sale, a_customer_of(sale, number)) for number in (1, 2))
    before = shards_of(fresh(sale))
    shards[1].kill()
    shutil.rmtree(shards[1].data / "appendonlydir")
    shards[1].start()
    assert [status(one) for one in (written, lost, kept)] == ["won", "lost", "waiting"]
    again = ask(sale, User.objects.get(pk=lost.customer_id))
    assert (again.receipt, again.replayed) == (lost.receipt, False)
    after = shards_of(fresh(sale))
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True]
    assert told(sale, 12) == {"queued": 9, "SoldOut": 3}
    consume()
    assert_sound(sale, held=12, left=0)


@pytest.mark.faults(row=17, backend="redis")
def test_unavailable_shard_blocks_only_its_share(shards) -> None:
    """Its customers get 503 with Retry-After; the rest of the stock is sold to the others."""
    sale = a_queued_sale(stock=30)
    first = ask(sale, a_customer_of(sale, 1))
    shards[1].kill()
    refused = a_customer_of(sale, 1)
    with pytest.raises(ServiceUnavailable) as error:
        ask(sale, refused)
    assert error.value.retry_after
    assert status(first) == "waiting"
    customers = [a_customer_of(sale, number) for number in [0, 2] * 13]
    answers: Counter[str] = Counter()
    for customer in customers:
        try:
            ask(sale, customer)
            answers["queued"] += 1
        except ServiceUnavailable:
            answers["refused"] += 1
    assert answers == {"queued": 20, "refused": 6}, "no customer is told that it is sold out"
    assert reconcile(sale=fresh(sale)).unavailable == 1
    assert consume() == 20
    audit = audit_sale(sale=fresh(sale))
    assert (audit.ok, audit.unavailable, audit.drift, audit.available) == (True, 1, None, 10)
    shards[1].start()
    assert ask(sale, User.objects.get(pk=first.customer_id)).receipt == first.receipt
    assert told(sale, 12) == {"queued": 9, "SoldOut": 3}
    consume()
    assert status(first) == "won"
    assert_sound(sale, held=30, left=0)


def test_sale_is_loaded_without_an_unavailable_shard(shards) -> None:
    sale = a_queued_sale(stock=6)
    shards[2].kill()
    ask(sale, a_customer_of(sale, 0), quantity=4)
    assert [one.generation > 0 for one in shards_of(fresh(sale))] == [True, True, False]
    shards[2].start()
    ask(sale, a_customer_of(sale, 2), quantity=2)
    assert told(sale, 3) == {"SoldOut": 3}
    consume()
    assert_sound(sale, held=6, left=0)


@pytest.mark.faults(row=17, backend="redis")
@pytest.mark.parametrize("sold", [7, 9])
def test_share_of_a_lost_shard_is_sold(shards, sold, capsys) -> None:
    """Staff declare it lost. If it returns with its data, its entries get what is left."""
    sale = a_queued_sale(stock=9)
    kept = [ask(sale, a_customer_of(sale, 1)) for _ in "ab"]
    with pytest.raises(CommandError, match="responds"):
        call_command("reconcile_queued", declare_lost=2)
    with pytest.raises(CommandError, match="No current sale has reservations on a server 4"):
        call_command("reconcile_queued", declare_lost=4)
    shards[1].kill()
    call_command("reconcile_queued", declare_lost=2)
    assert f"{sale.slug}: moved 3 units of server 2" in capsys.readouterr().err
    assert {status(one) for one in kept} == {"lost"}
    for _ in range(sold):
        ask(sale, a_customer_of(sale, 0))
    shards[1].start()
    reconcile(sale=fresh(sale))
    consume()
    wins = min(2, 9 - sold)
    assert sorted(status(one) for one in kept) == ["sold_out"] * (2 - wins) + ["won"] * wins
    assert RejectedReservation.objects.count() == 2 - wins
    assert_sound(sale, held=9, left=0)


def test_responding_shard_is_not_lost() -> None:
    sale = a_queued_sale()
    load(sale=sale)
    with pytest.raises(BadInput):
        declare_lost(sale=fresh(sale), number=0)
    assert_sound(sale, held=0, left=10)


def test_shards_of_a_sale_are_fixed_by_its_first_load(settings) -> None:
    urls = settings.QUEUE_URLS
    settings.QUEUE_URLS = urls[:2]
    sale = a_queued_sale(stock=4)
    ask(sale)
    settings.QUEUE_URLS = urls
    assert len(shards_of(fresh(sale))) == 2
    assert told(sale, 4) == {"queued": 3, "SoldOut": 1}
    consume()
    assert_sound(sale, held=4, left=0)
    assert len(shards_of(a_queued_sale())) == 3


def test_sale_of_one_server_stays_there_when_others_are_added(settings) -> None:
    urls, settings.QUEUE_URLS = settings.QUEUE_URLS, []
    sale = a_queued_sale(stock=2)
    ask(sale)
    assert store.keys_of(*shards_of(fresh(sale))).state.startswith(f"queue:{{{sale.pk}}}:")
    settings.QUEUE_URLS = [settings.REDIS_URL, *urls]
    assert told(sale, 2) == {"queued": 1, "SoldOut": 1}
    consume()
    assert_sound(sale, held=2, left=0)


def test_nodes_of_a_cluster_share_a_sale(settings, redis_cluster) -> None:
    settings.QUEUE_URLS = [redis_cluster.url] * 3
    sale = a_queued_sale(stock=6)
    assert told(sale, 8) == {"queued": 6, "SoldOut": 2}
    for node in redis_cluster.masters:
        assert f"queue:{{{sale.pk}." in node.ask("KEYS *")
    consume()
    assert_sound(sale, held=6, left=0)


def test_closed_sale_replays_on_the_home_shard(shards) -> None:
    sale, customer = a_queued_sale(stock=2), a_customer()
    first = ask(sale, customer)
    consume()
    Sale.objects.filter(pk=sale.pk).update(closes_at=timezone.now())
    assert ask(sale, customer).receipt == first.receipt


@pytest.mark.faults(row=17, backend="redis")
def test_stopped_shard_delays_no_other(shards) -> None:
    """A server that does not reply costs a consumer one time-out, then its breaker is open."""
    sale = a_queued_sale(stock=9)
    load(sale=sale)
    shards[0].pause()
    try:
        queued = [ask(sale, a_customer_of(sale, number)) for number in (1, 2)]
        consume()
        assert [status(one) for one in queued] == ["won", "won"]
    finally:
        shards[0].resume()
    customer = a_customer_of(sale, 0)

    def is_accepted() -> bool:
        with suppress(ServiceUnavailable):
            return bool(ask(sale, customer))
        return False

    until(is_accepted, "the shard that replies again")


def test_page_of_a_refused_customer_says_when_to_retry(shards) -> None:
    sale = a_queued_sale(stock=9)
    load(sale=sale)
    shards[0].kill()
    customer = a_customer_of(sale, 0)
    form = {"quantity": 1, "idempotency_key": "k" * 36}
    response = signed_in(customer).post(f"/sales/{sale.slug}/buy/", form)
    assert (response.status_code, response["Retry-After"]) == (503, "2")
