"""A queued sale with 100,000 customers: no command delays the other clients of Redis for long."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.db import connection

from devservers import Redis
from shop.models import Sale
from shop.reservations import store
from shop.reservations.reconciliation import load, reconcile
from shop.reservations.store import Entry
from tests.shop.making import a_customer
from tests.shop.queued import a_queued_sale, first_shard, keys_of, redis_command

pytestmark = [pytest.mark.django_db, pytest.mark.only("sqlite")]  # its SQL fills the tables

CUSTOMERS = 100_000
BACKLOG = 20_000
SLOWEST = 20_000
"""Microseconds that a command may take."""
ATTEMPTS = 3
"""Redis measures wall time: another process may delay a command, but not the same one each time."""

FILL = """
    INSERT INTO shop_user (id, username, password, first_name, last_name, email, is_superuser,
                           is_staff, is_active, date_joined)
    SELECT 1000 + i, 'u' || i, '', '', '', '', 0, 0, 1, '2026-01-01' FROM numbers;

    INSERT INTO shop_order (number, customer_id, sale_id, quantity, unit_price, status, key,
                            created_at, pay_by)
    SELECT printf('%%016X', i), 1000 + i, {sale}, 1, 9.9, 'paid', i, '2026-01-01', '2026-01-01'
    FROM numbers;

    INSERT INTO shop_customerquota (customer_id, sale_id, taken)
    SELECT 1000 + i, {sale}, 1 FROM numbers
"""


@pytest.fixture
def large_sale(redis: Redis) -> Sale:
    """A sale with that many written orders and a backlog of reservations."""
    sale = a_queued_sale(stock=2 * BACKLOG)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE numbers (i INTEGER)")
        cursor.executemany("INSERT INTO numbers VALUES (%s)", [(i,) for i in range(CUSTOMERS)])
        for statement in FILL.format(sale=sale.pk).split(";"):
            cursor.execute(statement, [])
    return sale


def slow_commands(act: Callable[[], object]) -> set[str]:
    """Return the commands that were slow in every attempt."""
    redis_command("CONFIG", "SET", "slowlog-log-slower-than", SLOWEST)
    slow = []
    while len(slow) < ATTEMPTS and (not slow or slow[-1]):
        redis_command("SLOWLOG", "RESET")
        act()
        commands = [" ".join(words[:4]) for _, _, _, words, *_ in redis_command("SLOWLOG", "GET")]
        slow.append({re.sub(r"}:\d+", "}", command) for command in commands})
    return set.intersection(*slow)


def test_no_command_is_slow(large_sale) -> None:
    """C4: 100,000 customers with orders, and a backlog of 20,000 reservations."""
    sale = large_sale

    def load_again() -> None:
        redis_command("FLUSHALL")
        load(sale=sale)

    assert not slow_commands(load_again)
    customer = a_customer()
    shard = first_shard(sale)
    for number in range(BACKLOG):
        store.reserve(shard=shard, entry=Entry("", f"N{number}", customer.pk, 1, ""), limit=BACKLOG)
    assert not slow_commands(lambda: reconcile(sale=sale))
    assert not slow_commands(lambda: reconcile(sale=sale, thoroughly=True))


def test_whole_hash_in_one_command_is_slow(large_sale) -> None:
    """The control."""
    load(sale=large_sale)
    assert slow_commands(lambda: redis_command("HGETALL", keys_of(large_sale).outcomes))
