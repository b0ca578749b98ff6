"""The orders of a sale as CSV, for spreadsheets and the software of a carrier."""

import csv
from collections.abc import Iterator
from io import StringIO

from django.conf import settings
from django.utils import timezone

from shop.models import DeliveryAddress, Order, Sale

CHUNK = 1000
"""Orders that one statement reads."""
COLUMNS = (
    *("number", "status", "created_at", "closed_at", "customer", "email", "product"),
    *("quantity", "unit_price", "total", "currency", *DeliveryAddress.LINES, "shipped_at"),
)
FORMULA = tuple("=+-@＝＋－＠")
"""With these a spreadsheet begins a formula."""


def export_orders(*, sale: Sale) -> Iterator[str]:
    """Yield the header and the orders of a sale, oldest first, in chunks of lines."""
    yield "\ufeff" + _lines([COLUMNS])  # so that spreadsheets read UTF-8
    last = 0
    orders = Order.objects.filter(sale=sale).select_related("customer", "address").order_by("pk")
    while chunk := list(orders.filter(pk__gt=last)[:CHUNK]):
        last = chunk[-1].pk
        yield _lines([_row(order, sale) for order in chunk])


def _row(order: Order, sale: Sale) -> tuple[object, ...]:
    address = getattr(order, "address", None)
    times = (order.created_at, order.closed_at, address and address.shipped_at)
    placed, closed, shipped = (
        timezone.localtime(when).isoformat(" ", "seconds") if when else "" for when in times
    )
    customer = order.customer
    return (
        *(order.number, order.status, placed, closed, customer.username, customer.email),
        *(sale.product.slug, order.quantity, order.unit_price, order.total, settings.CURRENCY),
        *(getattr(address, name, "") for name in DeliveryAddress.LINES),
        shipped,
    )


def _lines(rows: list[tuple[object, ...]]) -> str:
    lines = StringIO()
    csv.writer(lines).writerows([[_as_text(value) for value in row] for row in rows])
    return lines.getvalue()


def _as_text(value: object) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    text = str(value)
    return f"'{text}" if text.lstrip().startswith(FORMULA) else text
