"""Reservations of queued sales, by the service and over HTTP."""

import secrets
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from devservers.faults.waiting import until
from locking.backends.redis.cluster import SLOTS, slot_of
from locking.backends.redis.connection import Connection, Disconnected
from locking.backends.redis.pool import redis_breaker
from shop.errors import KeyReused, NotOpen, ServiceUnavailable
from shop.models import CustomerQuota, Order, Sale, User
from shop.orders.service import cancel_order
from shop.platform.redis import TIMEOUT
from shop.reservations import store
from shop.reservations.reconciliation import load, reconcile
from tests.shop.making import a_customer, buy, fresh, signed_in
from tests.shop.queued import (
    a_queued_sale,
    ask,
    assert_sound,
    consume,
    keys_of,
    redis_command,
    status,
    told,
)

pytestmark = [pytest.mark.django_db, pytest.mark.stores]


def test_replay_and_page_survive_a_rotated_secret_key(redis, settings) -> None:
    """Also once the order is written and the sale has left Redis."""
    sale, customer = a_queued_sale(stock=2), a_customer()
    first = ask(sale, customer)
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = secrets.token_hex()
    assert ask(sale, customer).replayed
    assert status(first) == "waiting"
    consume()
    redis_command("FLUSHALL")
    again = ask(sale, customer)
    assert (again.replayed, status(again), status(first)) == (True, "won", "won")
    assert_sound(sale, held=1, left=1)


def test_form_that_was_overtaken_gets_a_returned_unit(li, shop, monkeypatch) -> None:
    """The form arrives again before its first request reaches Redis, which then gets a unit."""
    sale, reserve = a_queued_sale(stock=1), store.reserve
    ask(sale)
    answers = []

    def reserve_late(**what: Any) -> str:
        monkeypatch.setattr(store, "reserve", reserve)
        answers.append(buy(signed_in(li), sale).status_code)
        consume()
        cancel_order(order=Order.objects.select_related("sale").get())
        return reserve(**what)

    monkeypatch.setattr(store, "reserve", reserve_late)
    first = buy(shop, sale)
    assert (answers, first.status_code) == ([409], 303)
    assert buy(signed_in(li), sale).url == first.url
    consume()
    assert_sound(sale, held=1, left=0)


def test_pages_show_what_can_be_reserved(client) -> None:
    """The consumer is stopped: the stock row has all units, and none of them can be bought."""
    sale = a_queued_sale(stock=3)

    def shows(*texts: str) -> bool:
        bar = client.get(f"/sales/{sale.slug}/stock/").text
        both = client.get(f"/sales/{sale.slug}/").text, client.get("/").text
        return f"{texts[0]} of 3 left" in bar and all(texts[1] in page for page in both)

    assert shows("3", "● Open")
    last = [ask(sale) for _ in "abc"][-1]
    until(lambda: shows("0", "✕ Sold out"), "pages as old as the cache allows")
    assert fresh(sale).left == 3, "the control: the stock row"
    consume()
    cancel_order(order=Order.objects.select_related("sale").get(number=last.number))
    until(lambda: shows("1", "● Open"), "the unit that was returned")


def test_after_the_end_only_the_form_of_an_order_is_answered() -> None:
    """The sale is no longer in Redis; tests/shop/web/test_bad_purchases.py has one that is."""
    sale, customer = a_queued_sale(), a_customer()
    first = ask(sale, customer)
    consume()
    Sale.objects.update(closes_at=timezone.now(), generation=1)
    again = ask(sale, customer)
    assert (again.receipt, again.replayed, status(again)) == (first.receipt, True, "won")
    with pytest.raises(KeyReused):
        ask(sale, customer, quantity=2)
    with pytest.raises(NotOpen):
        ask(sale)


def test_units_are_released_once_after_a_lost_reply(monkeypatch) -> None:
    sale, customer = a_queued_sale(stock=5, limit=2), a_customer()
    queued, ran = ask(sale, customer, quantity=2), []
    consume()
    run = Connection.run

    def run_and_break(wire: Connection, *what: object) -> object:
        ran.append(run(wire, *what))
        if len(ran) == 1:
            raise Disconnected
        return ran[-1]

    monkeypatch.setattr(Connection, "run", run_and_break)
    cancel_order(order=Order.objects.select_related("sale").get(customer=customer))
    monkeypatch.undo()
    assert ran == [1, 0]
    assert (status(queued), ask(sale, customer, quantity=2).replayed) == ("won", True)
    assert_sound(sale, held=0, left=5)


def test_unresponsive_redis_is_refused_in_bounded_time(redis) -> None:
    sale, customer = a_queued_sale(), a_customer()
    first = ask(sale, customer)
    redis.pause()
    began = time.monotonic()
    try:
        with pytest.raises(ServiceUnavailable):
            ask(sale)
        assert TIMEOUT <= time.monotonic() - began < 10
        assert redis_breaker(redis.url).is_open
        assert status(first) == "waiting"
    finally:
        redis.resume()
    until(lambda: not redis_breaker(redis.url).is_open)
    assert ask(sale, customer).receipt == first.receipt


def a_sale_on(node: int) -> Sale:
    """Return a sale of three units in the slots of that master of a `RedisCluster`."""
    while True:
        sale = a_queued_sale(stock=3)
        if slot_of(str(sale.pk)) * 3 // SLOTS == node:
            return sale


def test_nodes_of_a_cluster_share_the_sales(settings, redis_cluster) -> None:
    settings.QUEUE_REDIS_URL = redis_cluster.url
    sales = [a_sale_on(node) for node in range(3)]
    queued = [ask(sale) for sale in sales]
    for sale, node in zip(sales, redis_cluster.masters, strict=True):
        assert f"queue:{{{sale.pk}}}:" in node.ask("KEYS *")
        assert told(sale, 3) == {"queued": 2, "SoldOut": 1}
    assert [status(one) for one in queued] == ["waiting"] * 3
    assert consume() == 9
    for sale in sales:
        assert_sound(sale, held=3, left=0)


def test_polls_back_off(shop) -> None:
    url = ask(a_queued_sale(), User.objects.get()).url
    delays, waited = [], "?waited=x"
    for _ in range(9):
        page = shop.get(url + waited, headers={"HX-Request": "true"})
        waited = "?waited=" + page.text.partition("?waited=")[2].partition('"')[0]
        delays.append(int(waited[8:]))
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (750, 5000)


def test_reservation_page_leads_to_the_order_without_script(shop) -> None:
    url = ask(a_queued_sale(), User.objects.get()).url
    assert '<noscript><meta http-equiv="refresh"' in shop.get(url).text
    consume()
    assert shop.get(url).url == Order.objects.get().get_absolute_url()


def test_reservation_page_is_private(shop) -> None:
    url = ask(a_queued_sale()).url
    assert shop.get(url).status_code == 404
    assert Client().get(url).status_code == 302
    own = ask(a_queued_sale(), User.objects.order_by("pk").first()).url
    assert shop.get(own).status_code == 200, "the control"
    for text in (own[9:-1][:-1] + "A", own[9:-2], own[10:-1], "x" * 22, "", own[9:31] + "ä"):
        assert shop.get(f"/reservations/{text}/").status_code == 404
    Sale.objects.all().delete()
    assert shop.get(own).status_code == 404, "an empty sale may be deleted"


CHUNK = 50
CUSTOMERS = 600
"""Redis reads a smaller hash as a whole."""
BACKLOG = 300


@pytest.fixture
def large_sale(monkeypatch) -> Sale:
    """A sale with that many written orders."""
    monkeypatch.setattr(store, "CHUNK", CHUNK)
    sale, now = a_queued_sale(stock=2 * BACKLOG), timezone.now()
    sold = {"sale": sale, "quantity": 1, "unit_price": Decimal(9), "status": "paid", "pay_by": now}
    buyers = User.objects.bulk_create(User(username=f"u{number}") for number in range(CUSTOMERS))
    Order.objects.bulk_create(Order(customer=one, key=one.username, **sold) for one in buyers)
    CustomerQuota.objects.bulk_create(
        CustomerQuota(customer=one, sale=sale, taken=1) for one in buyers
    )
    return sale


@pytest.fixture
def sizes(monkeypatch) -> list[int]:
    """Return the numbers of items that each command has sent and received."""
    seen: list[int] = []

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(wire: Connection, *sent: object) -> Any:
            reply = real(wire, *sent)
            parts = [*sent, *(reply if isinstance(reply, list | dict) else [])]
            seen.append(sum(len(one) if isinstance(one, list) else 1 for one in parts))
            return reply

        return call

    for name in ("command", "run"):
        monkeypatch.setattr(Connection, name, counting(getattr(Connection, name)))
    return seen


def test_no_command_has_more_items_than_a_chunk(large_sale, sizes) -> None:
    most = 6 * CHUNK  # five values of an entry, and some more
    load(sale=large_sale)
    assert told(large_sale, BACKLOG) == {"queued": BACKLOG}
    reconcile(sale=large_sale, thoroughly=True)
    assert consume() == BACKLOG
    assert max(sizes) < most
    redis_command("HGETALL", keys_of(large_sale).outcomes)
    assert sizes[-1] > most, "the control"
