"""The data of a shop that has grown, written on MariaDB with its table of numbers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.db import connection
from django.utils import timezone

from inventory.models import Product
from shop.models import Sale, User
from shop.sales.queries import create_sale
from waiting_room.models import Room

PRODUCTS, SALES, CUSTOMERS = 50, 200, 200_000
SMALL, BIG = 200_000, 100_000
"""Orders of all small sales together, and of the big one."""
ARCHIVED = 127_400
"""Orders that were deleted, of which the ledger keeps both movements; 600,000 movements in all."""
FOR = timedelta(days=10)
"""The big sale has been open for so long, with an order every eight seconds."""
OPEN, UPCOMING = 10, 10
"""Sales that are open or have not opened; the others have ended, one every six hours."""
RUNS, KEYS, SESSIONS = 45_000, 100_000, 50_000
_ORDERS = """
INSERT INTO shop_order (number, customer_id, sale_id, quantity, unit_price, status, `key`,
    created_at, pay_by, closed_at)
SELECT UPPER(LEFT(SHA2(seq, 256), 16)), {customer}, {sale}, 1, 9.90,
    CASE seq % 20 WHEN 0 THEN 'pending' WHEN 1 THEN 'cancelled' WHEN 2 THEN 'expired'
        WHEN 3 THEN 'expired' ELSE 'paid' END,
    SHA2(CONCAT('key', seq), 256),
    UTC_TIMESTAMP(6) - INTERVAL ({last} - seq) * 8 SECOND,
    UTC_TIMESTAMP(6) + INTERVAL IF(seq % 20 = 0, 86400, -60) SECOND,
    IF(seq % 20 = 0, NULL, UTC_TIMESTAMP(6) - INTERVAL ({last} - seq) * 8 SECOND)
FROM seq_{first}_to_{last}"""
_MOVEMENTS = """
INSERT INTO inventory_stockmovement (stock_id, delta, reason, order_number, quantity_after,
    fence_epoch, fence_token, created_at)
SELECT {stock}, {delta}, '{reason}', {number}, NULL, 1, 0, {created_at} FROM {rows}"""
_OF_ORDERS = (
    "shop_order o JOIN shop_sale s ON s.id = o.sale_id WHERE o.status IN ({}) ORDER BY o.id"
)
_CLOSED = "'cancelled', 'expired'"
_LEFT = """
UPDATE inventory_stock SET quantity = (SELECT SUM(delta) FROM inventory_stockmovement m
    WHERE m.stock_id = inventory_stock.id)"""
_QUOTAS = """
INSERT INTO shop_customerquota (customer_id, sale_id, taken)
SELECT customer_id, sale_id, SUM(IF(status IN ('pending', 'paid'), quantity, 0))
FROM shop_order GROUP BY customer_id, sale_id"""
_PAYMENTS = """
INSERT INTO shop_payment (reference, order_id, amount, status, created_at, answer_by, closed_at)
SELECT UPPER(LEFT(SHA2(CONCAT('payment', id), 256), 16)), id, unit_price, 'approved', created_at,
    pay_by, closed_at FROM shop_order WHERE status = 'paid' ORDER BY id"""
_REJECTED = """
INSERT INTO shop_rejectedreservation (number, sale_id, customer_id, quantity, reason, detail,
    created_at)
SELECT UPPER(LEFT(SHA2(CONCAT('rejected', seq), 256), 16)), {sale}, {customer} + seq, 1,
    'sold_out', '', UTC_TIMESTAMP(6) FROM seq_1_to_20000"""
_CUSTOMERS = """
INSERT INTO shop_user (password, is_superuser, username, first_name, last_name, email, is_staff,
    is_active, date_joined)
SELECT '!', 0, CONCAT('customer-', seq), '', '', CONCAT(seq, '@example.com'), 0, 1,
    UTC_TIMESTAMP(6) - INTERVAL {rows} - seq SECOND FROM seq_1_to_{rows}"""
_RUNS = """
INSERT INTO locking_jobrun (digest, task, arguments, scheduled_for, state, attempts, duplicates,
    host, started_at, ended_at, lease_until, sent_at, detail)
SELECT MD5(seq), ELT(1 + seq % 5, 'shop.tasks.expire_unpaid_orders',
        'shop.tasks.time_out_payments', 'shop.tasks.expire_unpaid_orders',
        'shop.tasks.time_out_payments', 'shop.tasks.reconcile_queued_sales'),
    '', at, 'done', 1, 0, 'worker-1', at, at, at, at, '0'
FROM (SELECT seq, UTC_TIMESTAMP(6) - INTERVAL (({rows} - seq) * 86400 / {rows}) SECOND AS at
    FROM seq_1_to_{rows}) runs"""
_KEYS = """
INSERT INTO locking_idempotencykey (digest, user, fingerprint, status, headers, body, created_at)
SELECT SHA2(seq, 256), seq, SHA2(CONCAT('print', seq), 256), 303, '{{}}', '',
    UTC_TIMESTAMP(6) - INTERVAL (({rows} - seq) * 86400 / {rows}) SECOND FROM seq_1_to_{rows}"""
_SESSIONS = """
INSERT INTO django_session (session_key, session_data, expire_date)
SELECT LEFT(SHA2(seq, 256), 32), REPEAT('x', 200),
    UTC_TIMESTAMP(6) - INTERVAL 5000 MINUTE + INTERVAL seq MINUTE FROM seq_1_to_{rows}"""
_TABLES = """shop_order shop_user shop_customerquota shop_payment inventory_stockmovement
    shop_rejectedreservation locking_jobrun locking_idempotencykey django_session"""


def fill() -> Sale:
    """Fill the empty MariaDB that the environment names; return the big sale."""
    assert connection.vendor == "mysql", "the data needs MariaDB's sequences"
    User.objects.create_superuser("growth-staff")
    sales = list(_sales())
    _fill(sales)
    return sales[0]


def _sales() -> Iterator[Sale]:
    products = [
        Product.objects.create(slug=f"growth-{n}", name=f"Product {n}", price=Decimal(20))
        for n in range(PRODUCTS)
    ]
    now = timezone.now()
    for n in range(SALES):
        opens_at = now - (timedelta(minutes=30) if n else FOR)
        if OPEN <= n < OPEN + UPCOMING:
            opens_at = now + timedelta(hours=n)
        elif n >= OPEN + UPCOMING:
            opens_at = now - timedelta(hours=6 * (n - OPEN - UPCOMING) + 4)
        sale = create_sale(
            product=products[n % PRODUCTS],
            quantity=10_000 if n else 2 * BIG,
            slug=f"growth-{n + 1}",
            price=Decimal("9.90"),
            limit_per_customer=5,
            opens_at=opens_at,
            closes_at=opens_at + timedelta(hours=3) + (timedelta() if n else FOR),
            fulfilment=Sale.Fulfilment.QUEUED if n in (1, 2) else Sale.Fulfilment.DIRECT,
        )
        if n < OPEN:
            Room.objects.create(sale=sale)
        yield sale


def _fill(sales: Sequence[Sale]) -> None:
    others, stocks = sales[1].pk, sales[1].stock_id
    big = sales[0].pk
    with _patient_cursor() as cursor:
        cursor.execute(_CUSTOMERS.format(rows=CUSTOMERS))
        cursor.execute("SELECT MIN(id) FROM shop_user WHERE username LIKE 'customer-%%'")
        (customer,) = cursor.fetchone()
        archived = f"seq_1_to_{ARCHIVED}"
        for delta, reason in (("-1", "reserved"), ("1", "returned")):
            cursor.execute(
                _MOVEMENTS.format(
                    stock=f"{stocks} + seq % {SALES - 1}",
                    delta=delta,
                    reason=reason,
                    number="UPPER(LEFT(SHA2(CONCAT('archived', seq), 256), 16))",
                    created_at="UTC_TIMESTAMP(6) - INTERVAL 60 DAY",
                    rows=archived,
                )
            )
        # One customer has an order in each of the small sales, and several in some.
        of_small = f"IF(seq % 600 = 0, {customer}, {customer} + seq * 7919 % {CUSTOMERS})"
        of_big = f"{customer} + seq - {SMALL + 1}"
        small, every = f"{others} + seq % {SALES - 1}", SMALL + BIG
        for first, last, who, where in (
            (1, SMALL, of_small, small),
            (SMALL + 1, every, of_big, str(big)),
        ):
            cursor.execute(_ORDERS.format(customer=who, sale=where, first=first, last=last))
        for delta, reason, status in (
            ("-o.quantity", "reserved", f"'pending', 'paid', {_CLOSED}"),
            ("o.quantity", "returned", _CLOSED),
        ):
            cursor.execute(
                _MOVEMENTS.format(
                    stock="s.stock_id",
                    delta=delta,
                    reason=reason,
                    number="o.number",
                    created_at="o.created_at",
                    rows=_OF_ORDERS.format(status),
                )
            )
        cursor.execute(_REJECTED.format(sale=others, customer=customer))
        for statement in (_LEFT, _QUOTAS, _PAYMENTS):
            cursor.execute(statement)
        for statement, number in ((_RUNS, RUNS), (_KEYS, KEYS), (_SESSIONS, SESSIONS)):
            cursor.execute(statement.format(rows=number))
        for table in _TABLES.split():
            cursor.execute(f"ANALYZE TABLE {table}")


@contextmanager
def _patient_cursor() -> Iterator[Any]:
    """Yield a cursor whose statements may take minutes, and that checks no reference."""
    options = connection.settings_dict["OPTIONS"]
    usual = options["read_timeout"]
    connection.close()
    options["read_timeout"] = 300
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION foreign_key_checks = 0, unique_checks = 0")
            yield cursor
    finally:
        connection.close()
        options["read_timeout"] = usual
