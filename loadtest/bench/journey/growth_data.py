"""The data of a shop that has grown: the sales here, all that customers do in growth.sql."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from string import Template
from typing import Any

from django.db import connection
from django.utils import timezone

from inventory.models import Product
from shop.models import Order, Sale, User
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
SQL = Path(__file__).with_name("growth.sql")


def fill() -> Sale:
    """Fill the empty MariaDB that the environment names; return the big sale."""
    assert connection.vendor == "mysql", "the data needs MariaDB's sequences"
    User.objects.create_superuser("growth-staff")
    sales = list(_sales())
    script = Template(SQL.read_text()).substitute(globals(), OTHERS=SALES - 1, ORDERS=SMALL + BIG)
    with _patient_cursor() as cursor:
        for statement in script.strip().split(";\n"):
            cursor.execute(statement)
    assert Order.objects.count() == SMALL + BIG, "a statement was interrupted"
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


@contextmanager
def _patient_cursor() -> Iterator[Any]:
    """Yield a cursor whose statements may take minutes, and that checks no reference."""
    options = connection.settings_dict["OPTIONS"]
    usual = options["read_timeout"]
    connection.close()
    options["read_timeout"] = 300
    try:
        with connection.cursor() as cursor:
            checks = "foreign_key_checks = 0, unique_checks = 0"
            cursor.execute(f"SET SESSION max_statement_time = 0, {checks}")
            yield cursor
    finally:
        connection.close()
        options["read_timeout"] = usual
