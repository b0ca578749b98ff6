"""A queued sale with 100,000 customers: no command delays the other clients of Redis for long."""

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
from tests.shop.queued import a_queued_sale, keys_of, redis_command

pytestmark = [pytest.mark.django_db, pytest.mark.only("sqlite")]  # its SQL fills the tables

CUSTOMERS = 100_000
BACKLOG = 20_000
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


def commands(act: Callable[[], object], *, longer_than: int) -> dict[str, int]:
    """Return the commands that Redis executed for longer than so many microseconds."""
    redis_command("CONFIG", "SET", "slowlog-log-slower-than", longer_than)
    redis_command("SLOWLOG", "RESET")
    act()
    return {
        re.sub(r"}:\d+", "}", " ".join(words[:4])): duration
        for _, _, duration, words, *_ in redis_command("SLOWLOG", "GET")
    }


def slow_commands(
    act: Callable[[], object], *, limit: int, prepare: Callable[[], object] = lambda: None
) -> set[str]:
    """Return the commands that took longer than `limit` microseconds in every attempt."""
    slow: list[set[str]] = []
    while len(slow) < ATTEMPTS and (not slow or slow[-1]):
        prepare()
        slow.append(set(commands(act, longer_than=limit)))
    return set.intersection(*slow)


def test_no_command_takes_half_as_long_as_the_whole_hash(large_sale) -> None:
    """100,000 customers with orders, and a backlog of 20,000 reservations."""
    sale = large_sale
    load(sale=sale)

    def whole_hash() -> None:
        redis_command("HGETALL", keys_of(sale).outcomes)

    reads = [commands(whole_hash, longer_than=0) for _ in range(ATTEMPTS)]
    limit = min(us for read in reads for name, us in read.items() if "HGETALL" in name) // 2
    assert slow_commands(whole_hash, limit=limit), "the control"
    assert not slow_commands(
        lambda: load(sale=sale), limit=limit, prepare=lambda: redis_command("FLUSHALL")
    )
    customer = a_customer()
    for number in range(BACKLOG):
        store.reserve(sale=sale, entry=Entry("", f"N{number}", customer.pk, 1, ""), limit=BACKLOG)
    assert not slow_commands(lambda: reconcile(sale=sale), limit=limit)
    assert not slow_commands(lambda: reconcile(sale=sale, thoroughly=True), limit=limit)
