"""Queued sales: what each outcome is, and what Redis may lose without anybody being lied to."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from unittest.mock import patch

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from loadtest.servers import Redis
from locking import locks, policy
from shop.audit import audit_sale
from shop.checkout import lock_name, place_order
from shop.errors import (
    BadInput,
    KeyReused,
    LimitReached,
    NotOpen,
    ShopError,
    StoreDown,
)
from shop.models import Order, Sale, SetAside, User
from shop.orders import cancel_order, expire_unpaid_orders
from shop.queued import consumer, store, writing
from shop.queued.loading import Repair, load, reconcile
from shop.queued.reserving import Queued, reserve, standing_of
from tests.shop.making import a_customer, a_sale, fresh, put_in_force

pytestmark = [pytest.mark.django_db, pytest.mark.stores]


@pytest.fixture(autouse=True)
def guard(monkeypatch) -> Iterator[None]:
    monkeypatch.setattr(consumer, "BLOCK", 0.01)
    monkeypatch.setattr(consumer, "LINGER", 0.0)
    monkeypatch.setattr(consumer, "LOOK", 0.0)
    monkeypatch.setattr(consumer, "CLAIM_AFTER", 0.0)
    # A test's transaction has to last.
    monkeypatch.setattr(consumer, "close_old_connections", lambda: None)
    monkeypatch.setattr(writing, "_reconnect", lambda: None)
    put_in_force("process")
    yield
    policy.forget()


@pytest.fixture
def redis(settings) -> Iterator[Redis]:
    """A Redis of the test's own, to lose."""
    with Redis() as server:
        settings.REDIS_URL = server.url
        yield server


def a_queued_sale(**what: float) -> Sale:
    sale = a_sale(fulfilment=Sale.Fulfilment.QUEUED, **what)
    return fresh(sale)


def ask(sale: Sale, customer: User | None = None, quantity: int = 1, key: str = "k") -> Queued:
    customer = customer or a_customer()
    return reserve(customer_id=customer.pk, sale=fresh(sale), quantity=quantity, key=key)


def told(sale: Sale, times: int, **what: object) -> Counter[str]:
    """What so many new customers are told."""
    answers: Counter[str] = Counter()
    for _ in range(times):
        try:
            ask(sale, **what)
            answers["queued"] += 1
        except ShopError as error:
            answers[type(error).__name__] += 1
    return answers


def status(queued: Queued) -> str:
    asked = queued.reservation
    ticket = queued.url.split("/")[2]
    return standing_of(customer_id=asked.customer_id, ticket=ticket).status


def consume() -> int:
    """As a consumer that is then gone."""
    one = consumer.Consumer(threading.Event())
    count = one.round()
    while more := one.round():
        count += more
    one._leave()
    return count


def assert_sound(sale: Sale, *, held: int, left: int) -> None:
    audit = audit_sale(sale=fresh(sale))
    assert audit.ok, audit.breaches
    assert (audit.held, audit.reserved, audit.drift) == (held, 0, 0)
    assert store.left(sale=fresh(sale)) == left
    assert not reconcile(sale=fresh(sale), thoroughly=True)


# --- What a form is told ---------------------------------------------------------------------


def test_from_the_form_to_the_order() -> None:
    sale = a_queued_sale(stock=5)
    queued = ask(sale, quantity=2)
    assert status(queued) == "waiting"
    assert consume() == 1
    assert status(queued) == "won"
    order = Order.objects.get(number=queued.reservation.number)
    assert (order.quantity, order.unit_price, order.status) == (2, sale.price, "pending")
    assert timedelta(minutes=14) < order.pay_by - timezone.now() < timedelta(minutes=15)
    assert_sound(sale, held=2, left=3)


def test_a_replay_is_told_the_same_before_and_after_the_order_is_written() -> None:
    sale, customer = a_queued_sale(stock=1), a_customer()
    first = ask(sale, customer)
    again = ask(sale, customer)
    consume()
    later = ask(sale, customer)  # sold out and over the limit meanwhile
    assert first.receipt == again.receipt == later.receipt
    assert [first.replayed, again.replayed, later.replayed] == [False, True, True]
    assert_sound(sale, held=1, left=0)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"key": "other", "quantity": 2}, LimitReached),
        ({"quantity": 2}, KeyReused),
        ({"quantity": 0}, BadInput),
    ],
)
def test_refused(asked, error) -> None:
    sale, customer = a_queued_sale(stock=5, limit=2), a_customer()
    ask(sale, customer)
    with pytest.raises(error):
        ask(sale, customer, **asked)
    consume()
    assert_sound(sale, held=1, left=4)


def test_sold_out_at_the_last_piece() -> None:
    sale = a_queued_sale(stock=3)
    assert told(sale, 2, quantity=2) == {"queued": 1, "SoldOut": 1}
    assert told(sale, 2) == {"queued": 1, "SoldOut": 1}


@pytest.mark.parametrize(("opens_in", "lasts"), [(60, 60), (-60, 30)])
@pytest.mark.parametrize("is_loaded", [True, False])
def test_not_open(opens_in, lasts, is_loaded) -> None:
    sale = a_queued_sale(opens_in=opens_in, lasts=lasts)
    if is_loaded:
        load(sale=sale)
    with pytest.raises(NotOpen):
        ask(sale)


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_replay_after_the_end_still_leads_to_the_order(is_loaded) -> None:
    sale, customer = a_queued_sale(), a_customer()
    first = ask(sale, customer)
    consume()
    Sale.objects.filter(pk=sale.pk).update(closes_at=timezone.now())
    if not is_loaded:
        Sale.objects.filter(pk=sale.pk).update(generation=1)
    again = ask(sale, customer)
    assert (again.receipt, again.replayed, status(again)) == (first.receipt, True, "won")


def test_scripts_are_taught_again_to_a_server_that_forgot_them() -> None:
    sale = a_queued_sale()
    ask(sale)
    store._command("SCRIPT", "FLUSH")
    ask(sale)
    assert consume() == 2


def test_a_silent_redis_is_waited_for_in_bounded_time(redis) -> None:
    sale, customer = a_queued_sale(), a_customer()
    first = ask(sale, customer)
    redis.pause()
    began = time.monotonic()
    try:
        with pytest.raises(StoreDown):
            ask(sale)
        assert status(first) == "waiting"
    finally:
        redis.resume()
    assert 0.9 < time.monotonic() - began < 2 * (2 * store.TIMEOUT + 1)
    assert ask(sale, customer).receipt == first.receipt


# --- Over HTTP -------------------------------------------------------------------------------


@pytest.fixture
def browser() -> Client:
    client = Client()
    client.force_login(a_customer())
    return client


def test_over_http(browser) -> None:
    sale = a_queued_sale()
    buy, form = f"/sales/{sale.slug}/buy/", {"quantity": 1, "idempotency_key": "k" * 36}
    response = browser.post(buy, form)
    assert response.status_code == 303
    page = browser.get(response.url)
    assert "Keep this page" in page.text
    assert "hx-get" in page.text
    assert '<noscript><meta http-equiv="refresh"' in page.text
    polled = browser.get(response.url, headers={"HX-Request": "true"})
    assert "<html" not in polled.text
    as_json = browser.post(buy, form, headers={"Accept": "application/json"})
    assert (as_json.status_code, as_json["Location"]) == (202, response.url)
    assert as_json.json() == {"status": "queued", "url": response.url}
    accept = {"Accept": "application/json"}
    assert browser.get(response.url, headers=accept).json() == {"status": "waiting", "order": None}
    consume()
    order = Order.objects.get().get_absolute_url()
    assert browser.get(response.url).url == order
    assert browser.get(response.url, headers={"HX-Request": "true"})["HX-Redirect"] == order
    assert browser.get(response.url, headers=accept).json() == {"status": "won", "order": order}
    assert browser.post(buy, form).url == response.url


def test_polls_back_off(browser) -> None:
    url = ask(a_queued_sale(), User.objects.get()).url
    delays, waited = [], "?waited=x"
    for _ in range(9):
        page = browser.get(url + waited, headers={"HX-Request": "true"})
        waited = "?waited=" + page.text.partition("?waited=")[2].partition('"')[0]
        delays.append(int(waited[8:]))
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (750, 5000)


def test_a_ticket_is_its_buyers_own(browser) -> None:
    url = ask(a_queued_sale()).url
    assert browser.get(url).status_code == 404
    assert Client().get(url).status_code == 302
    own = ask(a_queued_sale(), User.objects.order_by("pk").first()).url
    assert browser.get(own).status_code == 200
    for text in (own[9:-1][:-1] + "A", own[9:-2], own[10:-1], "x" * 22, "", own[9:31] + "ä"):
        assert browser.get(f"/tickets/{text}/").status_code == 404


# --- What becomes of an entry ----------------------------------------------------------------


def test_an_entry_that_cannot_be_read_holds_up_nobody() -> None:
    sale = a_queued_sale(stock=5)
    before = ask(sale)
    orders = store.keys_of(sale.pk, fresh(sale).generation)[3]
    store._command("XADD", orders, "*", "n", "ABC", "c", "nobody", "q", "1", "k", "x")
    after = ask(sale)
    assert consume() == 3
    assert [status(before), status(after)] == ["won", "won"]
    kept = SetAside.objects.get()
    assert (kept.number, kept.reason, "nobody" in kept.detail) == ("ABC", "failed", True)
    assert_sound(sale, held=2, left=3)


def test_an_order_that_cannot_be_written_is_set_aside_and_its_pieces_return(admin_client) -> None:
    sale, gone = a_queued_sale(stock=5), a_customer()
    lost, other = ask(sale, gone, quantity=2), ask(sale)
    gone.delete()
    # Where the database checks foreign keys at the end of a transaction, a test's has none.
    with patch.object(writing, "commit", _without_customers(writing.commit)):
        consume()
    assert [status(lost), status(other)] == ["failed", "won"]
    assert_sound(sale, held=1, left=4)
    page = admin_client.get("/admin/shop/setaside/")
    assert lost.reservation.number in page.text


def _without_customers(commit: Callable[..., object]) -> Callable[..., object]:
    from django.db import IntegrityError

    def checked(statements):
        rows = statements[0].params
        width = len(rows) // statements[0].sql.count("(%s")
        customers = rows[1::width]
        if User.objects.filter(pk__in=customers).count() < len(set(customers)):
            raise IntegrityError("a foreign key constraint fails")
        return commit(statements)

    return checked


def test_a_key_of_another_sale_is_told_so() -> None:
    customer, sale = a_customer(), a_queued_sale(stock=5)
    place_order(customer=customer, sale=fresh(a_sale()), quantity=1, key="k")
    queued = ask(sale, customer)
    consume()
    assert status(queued) == "key_reused"
    assert_sound(sale, held=0, left=5)


def test_a_limit_lowered_meanwhile_is_kept_where_it_is_written() -> None:
    sale, customer = a_queued_sale(stock=5, limit=2), a_customer()
    both = [ask(sale, customer, key=key) for key in "ab"]
    Sale.objects.update(limit_per_customer=1)
    consume()
    assert [status(one) for one in both] == ["won", "limit"]
    assert_sound(sale, held=1, left=4)


def test_what_redis_promised_too_much_is_sold_out_after_all(browser) -> None:
    sale = a_queued_sale(stock=2)
    load(sale=sale)
    store._command("HINCRBY", store.keys_of(sale.pk, sale.generation)[0], "left", 2)
    queued = [ask(sale, User.objects.get()), *(ask(sale) for _ in range(3))]
    consume()
    assert [status(one) for one in queued] == ["won", "won", "sold_out", "sold_out"]
    assert_sound(sale, held=2, left=0)


def test_a_database_that_fails_leaves_the_entry_for_later() -> None:
    from django.db import OperationalError

    sale = a_queued_sale()
    queued = ask(sale)
    with patch.object(writing, "commit", side_effect=OperationalError("gone")):
        consumer.Consumer(threading.Event()).round()
        assert status(queued) == "waiting"
    assert not SetAside.objects.exists()
    consume()
    assert status(queued) == "won"
    assert_sound(sale, held=1, left=9)


def test_one_sale_whose_lock_is_held_keeps_no_other_waiting(monkeypatch) -> None:
    monkeypatch.setattr(writing, "PATIENCE", 0.05)
    stuck, free = a_queued_sale(), a_queued_sale()
    both = [ask(stuck), ask(free)]
    let_go, held = threading.Event(), threading.Event()

    def hold() -> None:
        with locks["process"].lock(lock_name(stuck.pk)):
            held.set()
            let_go.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(20)
    consumer.Consumer(threading.Event()).round()
    assert [status(one) for one in both] == ["waiting", "won"]
    let_go.set()
    holder.join()
    consume()
    assert status(both[0]) == "won"


def test_an_entry_at_which_the_database_fails_again_and_again_is_set_aside(monkeypatch) -> None:
    from django.db import OperationalError

    sale = a_queued_sale()
    queued = ask(sale)
    one = consumer.Consumer(threading.Event())
    with patch.object(writing, "commit", side_effect=OperationalError("1366")):
        for _ in range(writing.DELIVERIES):
            one.round()
    assert status(queued) == "failed"
    assert "1366" in SetAside.objects.get().detail
    assert_sound(sale, held=0, left=10)


# --- Pieces return ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancelled", "expired"])
@pytest.mark.parametrize("is_silent", [False, True])
def test_pieces_of_a_closed_order_can_be_reserved_again(how, is_silent) -> None:
    sale, customer = a_queued_sale(stock=2, limit=2), a_customer()
    ask(sale, customer, quantity=2)
    consume()
    assert told(sale, 1) == {"SoldOut": 1}
    silence = patch.object(store, "give_back", side_effect=StoreDown)
    with silence if is_silent else nullcontext():
        if how == "cancelled":
            cancel_order(order=Order.objects.select_related("sale").get())
        else:
            assert expire_unpaid_orders(now=timezone.now() + timedelta(days=1)) == 1
    if is_silent:
        assert told(sale, 1) == {"SoldOut": 1}
        repair = reconcile(sale=fresh(sale))
        assert (repair.drift, repair.customers) == (-2, 1)
    again = ask(sale, customer, quantity=2, key="again")
    consume()
    assert status(again) == "won"
    assert_sound(sale, held=2, left=0)


def test_restocked_in_the_admin(admin_client, django_capture_on_commit_callbacks) -> None:
    sale = a_queued_sale(stock=1)
    ask(sale)
    form = {"action": "restock", "pieces": 3, "_selected_action": sale.pk}
    with django_capture_on_commit_callbacks(execute=True):
        admin_client.post("/admin/shop/sale/", form)
    assert told(sale, 4) == {"queued": 3, "SoldOut": 1}
    consume()
    assert_sound(sale, held=4, left=0)


# --- Redis loses what it knew ----------------------------------------------------------------


@pytest.mark.faults(row=5, backend="redis", fired="Redis emptied")
@pytest.mark.parametrize("how", ["flushed", "restarted"])
def test_emptied_in_mid_sale(redis, how) -> None:
    sale, customer = a_queued_sale(stock=10, limit=1), a_customer()
    written = ask(sale, customer)
    consume()
    lost = ask(sale)
    if how == "flushed":
        store._command("FLUSHALL")
    else:
        redis.kill()
        redis.start()
    assert [status(written), status(lost)] == ["won", "lost"]
    assert ask(sale, customer).receipt == written.receipt
    with pytest.raises(LimitReached):
        ask(sale, customer, key="more")
    # The same form again, as the ticket page sends it.
    again = ask(sale, User.objects.get(pk=lost.reservation.customer_id))
    assert (again.receipt, again.replayed) == (lost.receipt, False)
    assert told(sale, 12) == {"queued": 8, "SoldOut": 4}
    consume()
    assert status(lost) == "won"
    assert_sound(sale, held=10, left=0)


def test_a_batch_read_before_redis_was_emptied_is_written_once(redis) -> None:
    """A consumer has it in hand; the buyer, told that it is lost, sends the form again."""
    sale, customer = a_queued_sale(stock=3), a_customer()
    first = ask(sale, customer)
    old = fresh(sale)
    entries = store.entries(sale=old)
    store._command("FLUSHALL")
    again = ask(sale, customer)
    assert first.receipt == again.receipt
    writing.write(sale=old, entries=entries)
    consume()
    assert Order.objects.count() == 1
    assert_sound(sale, held=1, left=2)


@pytest.mark.faults(row=5, backend="redis", fired="reseeded")
def test_reseeded_while_entries_are_under_way_it_offers_them_twice() -> None:
    """The control: what others do after a restart, and what the reconciler does instead."""
    sale = a_queued_sale(stock=5)
    assert told(sale, 3) == {"queued": 3}
    state = store.keys_of(sale.pk, fresh(sale).generation)[0]
    store._command("HSET", state, "left", fresh(sale).stock.quantity)
    assert reconcile(sale=fresh(sale)).drift == 3
    assert told(sale, 3) == {"queued": 2, "SoldOut": 1}
    store._command("HSET", state, "left", fresh(sale).stock.quantity)
    assert told(sale, 3) == {"queued": 3}
    consume()
    assert SetAside.objects.filter(reason="sold_out").count() == 3
    assert_sound(sale, held=5, left=0)


@pytest.mark.faults(row=4, backend="redis")
def test_failed_over_to_an_old_replica(redis, settings) -> None:
    sale, customer = a_queued_sale(stock=10), a_customer()
    with Redis(replica_of=redis) as replica:
        early = ask(sale, customer)
        store._command("WAIT", 1, 5000)
        settings.REDIS_URL = replica.url
        store._command("REPLICAOF", "NO", "ONE")
        settings.REDIS_URL = redis.url
        written = ask(sale)
        consume()
        cancel_order(order=Order.objects.select_related("sale").get(customer=customer))
        lost = ask(sale)
        redis.kill()
        settings.REDIS_URL = replica.url
        assert store.left(sale=fresh(sale)) == 9
        repair = reconcile(sale=fresh(sale))
        # The replica still has the first entry, which was written; one order it never heard of.
        assert (repair.settled, repair.drift, repair.customers) == (1, 0, 2)
        assert [status(early), status(written), status(lost)] == ["won", "won", "lost"]
        assert ask(sale, quantity=1).reservation.number != early.reservation.number
        assert told(sale, 12) == {"queued": 8, "SoldOut": 4}
        consume()
        assert_sound(sale, held=10, left=0)


def test_a_ticket_whose_entry_is_gone_may_be_sent_again() -> None:
    sale, customer = a_queued_sale(stock=2), a_customer()
    queued = ask(sale, customer)
    store._command("DEL", store.keys_of(sale.pk, fresh(sale).generation)[3])
    repair = reconcile(sale=fresh(sale))
    assert (repair.drift, repair.customers, repair.forgotten) == (-1, 1, 1)
    assert status(queued) == "lost"


def test_the_lost_page_sends_the_same_form_again(browser) -> None:
    sale = a_queued_sale()
    url = ask(sale, User.objects.get(), key="k-17").url
    store._command("DEL", *store.keys_of(sale.pk, fresh(sale).generation))
    page = browser.get(url)
    assert 'value="k-17"' in page.text
    assert (
        browser.post(f"/sales/{sale.slug}/buy/", {"quantity": 1, "idempotency_key": "k-17"}).url
        == url
    )
    consume()
    assert_sound(sale, held=1, left=9)


def test_the_command_and_the_audit_say_what_they_found(capsys) -> None:
    sale = a_queued_sale(stock=4)
    ask(sale)
    state = store.keys_of(sale.pk, fresh(sale).generation)[0]
    store._command("HINCRBY", state, "left", -2)
    audit = audit_sale(sale=fresh(sale))
    assert (audit.ok, audit.reserved, audit.drift) == (True, 1, -2)
    call_command("reconcile_queued")
    assert f"{sale.slug}: drift -2" in capsys.readouterr().out
    call_command("reconcile_queued")
    assert f"{sale.slug}: agreed" in capsys.readouterr().out
    assert not Repair(sale=sale.slug)


def test_stock_sold_directly_beside_the_queue_is_noticed() -> None:
    """Nobody should; the stock row and the reconciler keep it honest."""
    sale = a_queued_sale(stock=2)
    load(sale=sale)
    place_order(customer=a_customer(), sale=fresh(sale), quantity=2, key="k")
    queued = ask(sale)
    consume()
    assert status(queued) == "sold_out"
    assert_sound(sale, held=2, left=0)
