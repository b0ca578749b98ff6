"""Redis loses data of a queued sale, and every status stays true."""

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.core.management import call_command
from django.utils import timezone

from devservers import Redis
from devservers.faults.waiting import until
from inventory import stock
from inventory.exceptions import OutcomeUnknown
from inventory.statements import Statement
from locking import locks
from shop.administration.audit import audit_sale
from shop.errors import LimitReached, ServiceUnavailable
from shop.models import Order, RejectedReservation, Sale, User
from shop.orders.service import cancel_order
from shop.reservations import order_writer, store
from shop.reservations.reconciliation import (
    Decided,
    Repair,
    _load,
    decided_in,
    load,
    reconcile,
)
from shop.sales.stock_lock import lock_name
from tests.locking.calls import held_by_another
from tests.shop.making import a_customer, buy, fresh
from tests.shop.purchases import armed_once
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


def test_sale_that_closes_on_the_last_day_of_the_calendar() -> None:
    sale = a_queued_sale(stock=2)
    Sale.objects.filter(pk=sale.pk).update(closes_at=datetime.max.replace(tzinfo=UTC))
    ask(sale)
    consume()
    assert_sound(sale, held=1, left=1)


@pytest.mark.faults(row=5, backend="redis", fired="Redis emptied")
@pytest.mark.parametrize("how", ["flushed", "restarted"])
def test_emptied_redis_is_loaded_again(redis, how) -> None:
    sale, customer = a_queued_sale(stock=10, limit=1), a_customer()
    written = ask(sale, customer)
    consume()
    lost = ask(sale)
    if how == "flushed":
        redis_command("FLUSHALL")
    else:
        redis.kill()
        redis.start()
    assert [status(written), status(lost)] == ["won", "lost"]
    assert ask(sale, customer).receipt == written.receipt
    with pytest.raises(LimitReached):
        ask(sale, customer, key="more")
    # The same form again, as the ticket page sends it.
    again = ask(sale, User.objects.get(pk=lost.customer_id))
    assert (again.receipt, again.replayed) == (lost.receipt, False)
    assert told(sale, 12) == {"queued": 8, "SoldOut": 4}
    consume()
    assert status(lost) == "won"
    assert_sound(sale, held=10, left=0)


def test_batch_read_before_a_loss_is_written_once(redis) -> None:
    """A consumer has read the batch; the customer, whose reservation is lost, sends it again."""
    sale, customer = a_queued_sale(stock=3), a_customer()
    first = ask(sale, customer)

    def lose_and_send_again() -> None:
        redis_command("FLUSHALL")
        assert ask(sale, customer).receipt == first.receipt

    with armed_once("queued.read", lose_and_send_again):
        consume()
    assert Order.objects.count() == 1
    assert_sound(sale, held=1, left=2)


@pytest.mark.faults(row=5, backend="redis", fired="reseeded")
def test_loading_without_the_stream_offers_units_twice() -> None:
    """The control: a load that ignores the stream, unlike the reconciliation."""
    sale = a_queued_sale(stock=5)
    assert told(sale, 3) == {"queued": 3}
    state = keys_of(sale).state
    redis_command("HINCRBY", state, "stock", 3)
    assert reconcile(sale=fresh(sale)).drift == 3
    assert told(sale, 3) == {"queued": 2, "SoldOut": 1}
    redis_command("HINCRBY", state, "stock", 5)
    assert told(sale, 3) == {"queued": 3}
    consume()
    assert RejectedReservation.objects.filter(reason="sold_out").count() == 3
    assert_sound(sale, held=5, left=0)


@pytest.mark.faults(row=4, backend="redis")
def test_failover_to_an_old_replica_is_repaired(redis, settings) -> None:
    sale, customer = a_queued_sale(stock=10), a_customer()
    with Redis(replica_of=redis) as replica:
        early = ask(sale, customer)
        until(lambda: redis_command("WAIT", 1, 100), "the replica's acknowledgement")
        settings.QUEUE_REDIS_URL = replica.url
        redis_command("REPLICAOF", "NO", "ONE")
        settings.QUEUE_REDIS_URL = redis.url
        written = ask(sale)
        consume()
        cancel_order(order=Order.objects.select_related("sale").get(customer=customer))
        lost = ask(sale)
        redis.kill()
        settings.QUEUE_REDIS_URL = replica.url
        assert store.left(sale=fresh(sale)) == 9
        repair = reconcile(sale=fresh(sale))
        # The replica still has the first entry, which was written; one order it never heard of.
        assert (repair.settled, repair.drift, repair.customers) == (1, 0, 2)
        assert [status(early), status(written), status(lost)] == ["won", "won", "lost"]
        assert ask(sale, quantity=1).number != early.number
        assert told(sale, 12) == {"queued": 8, "SoldOut": 4}
        consume()
        assert_sound(sale, held=10, left=0)


def test_reservation_without_entry_can_be_sent_again() -> None:
    sale, customer = a_queued_sale(stock=2), a_customer()
    lost, kept = ask(sale, customer), ask(sale)
    orders = keys_of(sale).orders
    redis_command("XDEL", orders, next(store.entries(sale=fresh(sale))).id)
    assert reconcile(sale=fresh(sale), thoroughly=True) == Repair(sale=sale.slug, forgotten=1)
    assert [status(lost), status(kept)] == ["lost", "waiting"]
    assert not ask(sale, customer).replayed
    consume()
    assert_sound(sale, held=2, left=0)


@pytest.mark.parametrize("interrupted_at", ["", "mirror", "reserve", "set_stock"])
@pytest.mark.parametrize("fault", [ServiceUnavailable, SystemExit], ids=["outage", "kill"])
def test_load_keeps_the_entries_of_a_lost_state(fault, interrupted_at: str) -> None:
    """The entries that are left of the generation that a load replaces, if it ends or not."""
    sale, customer = a_queued_sale(stock=3, limit=1), a_customer()
    ask(sale)
    consume()  # a load copies its customer and its outcome
    first = ask(sale, customer)
    redis_command("DEL", keys_of(sale).state)
    if interrupted_at:
        with (
            patch.object(store, interrupted_at, side_effect=fault),
            pytest.raises(fault),
        ):
            load(sale=fresh(sale))
        kept = redis_command("KEYS", f"{keys_of(sale).state.rpartition(':')[0]}:*")
        new = set(kept) - set(keys_of(sale))
        assert bool(new) == (fault is SystemExit), "no key is left if the process can delete it"
        assert [key for key in new if redis_command("PTTL", key) < 0] == [], "they stay for ever"
    assert told(sale, 2) == {"queued": 1, "SoldOut": 1}
    with pytest.raises(LimitReached):
        ask(sale, customer, key="more")
    assert ask(sale, customer).replayed
    consume()
    assert status(first) == "won"
    assert_sound(sale, held=3, left=0)


def test_load_whose_generation_is_lost_meanwhile_does_not_go_on() -> None:
    """Redis would create it again with the units of the later entries alone."""
    sale, move, moved = a_queued_sale(stock=4), store.reserve, list[str]()
    assert told(sale, 3) == {"queued": 3}
    redis_command("DEL", keys_of(sale).state)

    def lose_before_the_second(*, sale: Sale, **entry: Any) -> str:
        if len(moved) == 1:
            redis_command("DEL", store.keys_of(sale).state)
        moved.append(move(sale=sale, **entry))
        return moved[-1]

    with patch.object(store, "reserve", lose_before_the_second), pytest.raises(ServiceUnavailable):
        load(sale=fresh(sale))
    load(sale=fresh(sale))
    assert store.left(sale=fresh(sale)) == 1
    consume()
    assert_sound(sale, held=3, left=1)


def test_reservation_is_not_lost_while_its_generation_is_replaced() -> None:
    """A page reads the sale's row, and then a load deletes the generation that the row named."""
    sale, is_waiting = a_queued_sale(), store.is_waiting
    queued = ask(sale)

    def replace_first(**reservation: Any) -> bool:
        if redis_command("DEL", keys_of(sale).state):
            read.undo()
            load(sale=fresh(sale))
        return is_waiting(**reservation)

    with pytest.MonkeyPatch.context() as read:
        read.setattr(store, "is_waiting", replace_first)
        assert status(queued) == "waiting"
    assert fresh(sale).generation != sale.generation
    redis_command("DEL", *keys_of(sale))
    assert status(queued) == "lost", "the control"


def test_reservation_is_not_lost_while_a_generation_is_filled() -> None:
    sale, found = a_queued_sale(), list[str]()
    queued = ask(sale)
    redis_command("DEL", keys_of(sale).state)
    with armed_once("queued.filled", lambda: found.append(status(queued))):
        load(sale=fresh(sale))
    assert [*found, status(queued)] == ["waiting", "waiting"]


def test_order_that_was_read_before_a_load_returns_its_unit_at_once(settings) -> None:
    sale = a_queued_sale(stock=1)
    ask(sale)
    consume()
    order = Order.objects.select_related("sale").get()
    store.delete(sale=fresh(sale))
    load(sale=fresh(sale))
    cancel_order(order=order)
    assert store.left(sale=fresh(sale)) == 1
    store.delete(sale=fresh(sale))
    settings.LOCK_TIMEOUT = 0.0
    with held_by_another(locks["process"], lock_name(sale.pk)):
        assert told(sale, 1) == {"Overloaded": 1}, "the next load needs the lock"


def test_threads_that_share_a_sale_load_it_once() -> None:
    """Two holders of the lock "none"; a web process gives its threads the same cached sale."""
    sale = a_queued_sale(stock=3)
    create, reserved = store.create, []

    def load_first(**options: Any) -> None:
        if not reserved:
            reserved.append(None)
            _load(sale)
            reserved[0] = ask(sale)
        create(**options)

    with patch("shop.reservations.store.create", load_first):
        _load(sale)
    consume()
    assert status(reserved[0]) == "won"
    assert_sound(sale, held=1, left=2)


def test_ended_sale_that_lost_its_state_is_written() -> None:
    """Nothing loads it again; the entries that are left must not be read for ever."""
    sale = a_queued_sale()
    queued = ask(sale)
    redis_command("DEL", keys_of(sale).state)
    Sale.objects.filter(pk=sale.pk).update(closes_at=timezone.now())
    consume()
    assert (status(queued), store.backlog(sale=fresh(sale))) == ("won", 0)


def test_page_of_a_lost_reservation_sends_the_form_again(shop) -> None:
    sale = a_queued_sale()
    url = ask(sale, User.objects.get(), key="k-17").url
    redis_command("DEL", *keys_of(sale))
    page = shop.get(url)
    assert 'value="k-17"' in page.text
    assert buy(shop, sale, key="k-17").url == url
    consume()
    assert_sound(sale, held=1, left=9)


def test_command_and_audit_report_the_repair(capsys) -> None:
    sale = a_queued_sale(stock=4)
    ask(sale)
    state = keys_of(sale).state
    redis_command("HINCRBY", state, "stock", -2)
    audit = audit_sale(sale=fresh(sale))
    assert (audit.ok, audit.reserved, audit.drift) == (True, 1, -2)
    soon = a_queued_sale(opens_in=30)
    call_command("reconcile_queued")
    rows = capsys.readouterr().out
    assert f"{sale.slug}  drift -2\n" in rows
    assert f"{soon.slug}  loaded True\n" in rows, "before its opening"
    call_command("reconcile_queued")
    assert f"{sale.slug}  none\n" in capsys.readouterr().out
    assert not Repair(sale=sale.slug)


def test_extended_sale_keeps_its_state() -> None:
    sale = a_queued_sale()
    ask(sale)
    consume()
    ask(sale)
    ends = timezone.now() + timedelta(days=30)
    Sale.objects.filter(pk=sale.pk).update(closes_at=ends)
    reconcile(sale=fresh(sale))
    for key in keys_of(sale):
        assert redis_command("PEXPIRETIME", key) / 1000 > ends.timestamp()


@pytest.mark.parametrize("when", ["before the outcomes", "after the outcomes"])
def test_late_commit_during_a_comparison_offers_no_unit_twice(when: str) -> None:
    """A search of `verify models queue` found it: see docs/explanation/searches.md."""
    sale, late = a_queued_sale(stock=2), list[list[Statement]]()
    queued = ask(sale)

    def lose_reply(statements: list[Statement]) -> None:
        late.append(statements)
        raise OutcomeUnknown

    with patch("inventory.stock.commit", lose_reply):
        assert order_writer.write(sale=fresh(sale)) == 0

    def deliver() -> None:
        if late:
            stock.commit(late[-1])
            late.clear()

    def read_outcomes(**options: Any) -> Decided:
        if when == "before the outcomes":
            deliver()
        outcomes = decided_in(**options)
        deliver()
        return outcomes

    with patch("shop.reservations.reconciliation.decided_in", read_outcomes):
        reconcile(sale=fresh(sale), thoroughly=True)
    left = store.left(sale=fresh(sale))
    assert left is not None
    assert left <= fresh(sale).stock.quantity == 1, "units offered, units left"
    consume()
    reconcile(sale=fresh(sale))
    assert status(queued) == "won"
    assert_sound(sale, held=1, left=1)
